// One micro-batch as the blocks see it: the tokens of all its documents one after the other,
// without any padding. Rows that the reference stack pads or packs become documents here, which
// gives the same losses and computes nothing for padding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace strata::comm {
class Group;
}

namespace strata::nn {

// T = tokens of the micro-batch, D = documents (attention stays inside a document).
struct Batch {
  at::Tensor ids = {};  // int64 [T]
  // int64 [T] on the CPU, the label of the *next* token of the document; -100: not trained.
  at::Tensor targets = {};
  at::Tensor positions = {};  // int64 [T], position inside the document
  at::Tensor token_keys =
      {};  // int64 [T], identifies (data row, position in the row); for dropout (I6)
  // int64 [T], of encoders: 1 for tokens of a document's second text; undefined: all are 0.
  at::Tensor token_types = {};
  std::vector<int64_t> offsets = {};  // [D + 1], document d is tokens offsets[d] .. offsets[d+1]
  // Only for nn/virtual_tokens.h: [D] on the host, the label of each document's first token. Empty:
  // none is trained.
  std::vector<int64_t> first_labels = {};
  // int64 [D * V], places of the virtual tokens, document by document; undefined: there are none.
  at::Tensor virtual_rows = {};
  // Encoder-decoder models: what the encoder reads, D documents without targets. The fields above
  // are the decoder's: ids begin with its start token, targets are the labels of the same place.
  std::shared_ptr<const Batch> source = {};
  // nn/attention/sequence_parallel.h: this is what a rank of `sequence` has of `whole`, which
  // attention looks at. Null: nothing is shared.
  std::shared_ptr<const Batch> whole = {};
  comm::Group* sequence = nullptr;
  int64_t num_padding = 0;  // tokens at its end that no data has, for parts of one size

  int64_t num_tokens() const { return ids.size(0); }
  int64_t num_real_tokens() const { return num_tokens() - num_padding; }
  // The batch with all tokens of every document.
  const Batch& of_documents() const { return whole ? *whole : *this; }
};

// Sums over the trained tokens of a micro-batch, filled by the loss.
struct LossSums {
  double loss = 0;     // sum of -log p
  double correct = 0;  // tokens whose target has the largest logit
  double entropy = 0;  // sum of the entropies of the predictions, in nats
  int64_t tokens = 0;  // targets that are not -100
};

// What identifies a random draw, together with the token: see I6.
struct DrawKey {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t micro_step = 0;
};

struct KvCache;       // nn/attention/kv_cache.h, generation only
class KeptAttention;  // nn/attention/kept_attention.h
struct DecoderCache;  // nn/attention/decoder_cache.h, generation of encoder-decoder models only
struct Preference;    // nn/preference.h
struct DocumentTask;  // nn/document_loss.h
class ExpertBalance;  // nn/experts/expert_balance.h

// Activations outside the chain of blocks, by a number that the family assigns: one block makes
// them, later ones read them (the encoder's output, tables of relative positions).
using Shelf = std::vector<at::Tensor>;

// What is asked of the head: of the micro-batch, by the recipe.
struct HeadTask {
  float loss_scale = 1.0f;  // backward starts from loss * loss_scale (1 / number of trained tokens)
  float label_smoothing = 0;  // of the loss, see ops/cross_entropy.h
  LossSums* sums = nullptr;   // the head adds to it
  // The documents are answers, whose losses take the place of the tokens'; the head fills what it
  // tells of them. Null: they are not.
  Preference* preference = nullptr;
  // For a head that gives each document numbers: which rows it reads, what is learnt from them; it
  // fills what they got.
  DocumentTask* documents = nullptr;
  // Generation of encoder-decoder models: the head writes the logits after each document here, fp32
  // [D, vocab], and takes no loss.
  at::Tensor* next_logits = nullptr;
};

// What a generation keeps between its tokens; null: there is none.
struct Generation {
  KvCache* cache = nullptr;  // keys and values of earlier tokens
  DecoderCache* decoder_cache = nullptr;
};

// How a block runs in one step of the schedule; set by the executor.
struct BlockPass {
  // False: the block runs again for its backward pass, and nobody reads what it returns.
  bool wants_output = true;
  // Selective checkpointing: layers make their input again where that is cheap (nn/remakable.h).
  bool remakes_inputs = false;
  // Where attention leaves its results, or finds them when the block runs again; null: nowhere.
  KeptAttention* kept_attention = nullptr;
  Shelf* shelf = nullptr;  // where models::Block says that it makes or reads some
};

// Everything a block may read besides its input and its parameters.
struct ForwardContext {
  const Batch* batch = nullptr;
  bool training = false;
  bool disable_dropout = false;
  DrawKey draw = {};
  // NEFTune's noise on embedded tokens while training (nn/embedded_rows.h): alpha / sqrt(tokens of
  // a row); 0: none.
  double embedding_noise = 0;
  // A mixture's routers add to it, and get a gradient from it; null: no loss balances experts.
  ExpertBalance* balance = nullptr;
  HeadTask head = {};
  Generation generation = {};
  BlockPass pass = {};

  bool drops() const { return training && !disable_dropout; }
};

}  // namespace strata::nn
