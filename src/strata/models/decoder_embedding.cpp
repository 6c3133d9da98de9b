#include "strata/models/decoder_embedding.h"

#include <ATen/ATen.h>

#include "strata/models/learned_positions.h"
#include "strata/models/residual_dropout.h"
#include "strata/nn/dropout.h"
#include "strata/nn/embedded_rows.h"

namespace strata::models {

DecoderEmbedding::DecoderEmbedding(const DecoderEmbeddingOptions& o, at::ScalarType storage)
    : dropout_rate_(o.dropout),
      tokens_(o.path,
              std::make_shared<nn::Parameter>(
                  o.path + ".weight", std::vector<int64_t>{o.vocab_size, o.hidden_size}, storage),
              o.padding_id),
      positions_key_(o.positions_key) {
  if (!o.positions_path.empty()) {
    positions_.emplace(o.positions_path + ".weight",
                       std::vector<int64_t>{o.num_positions, o.hidden_size}, storage);
    positions_->set_embedding_table();
  }
  if (!o.norm_path.empty()) norm_.emplace(o.norm_path, o.hidden_size, o.norm_eps, storage);
}

std::vector<nn::Parameter*> DecoderEmbedding::parameters() {
  std::vector<nn::Parameter*> list;
  tokens_.append_parameters(list);
  if (positions_) list.push_back(&*positions_);
  if (norm_) norm_->append_parameters(list);
  return list;
}

at::Tensor DecoderEmbedding::forward(const at::Tensor& x, const nn::ForwardContext& context) {
  if (positions_) check_learned_positions(context, positions_->shape()[0], positions_key_);
  at::Tensor rows = nn::with_noise(tokens_.forward(x, context.batch->ids), context);
  if (positions_) {
    rows = rows + nn::embed(x, context.batch->positions, *positions_, /*padding_id=*/std::nullopt);
  }
  return nn::dropout(norm_ ? norm_->forward(rows) : rows, dropout_rate_, kFirstDropoutPlace,
                     context);
}

}  // namespace strata::models
