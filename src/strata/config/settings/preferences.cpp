// Records of the settings of the recipes dpo, orpo, cpo, kto and reward.
#include "strata/config/settings/table.h"

namespace strata::config {

std::vector<Setting> preference_settings() {
  return with_group(
      "preferences", "DPOConfig",
      {{.name = "beta",
        .field = STRATA_FIELD(preference.beta),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help =
            "dpo, kto: how dear it is to leave the reference; of ipo the paper's tau. cpo: what "
            "the difference of both answers is multiplied by. orpo: what their odds count "
            "beside the likelihood of the preferred one (the paper's lambda)"},
       {.name = "loss_type",
        .field = STRATA_FIELD(preference.loss_type),
        .resume = Resume::kTraining,
        .help = "dpo: one loss or several, which are added up: sigmoid (the default), hinge, ipo, "
                "exo_pair, nca_pair, robust, bco_pair, sppo_hard, aot, aot_unpaired, apo_zero, "
                "apo_down, discopop, sft, sigmoid_norm. cpo: sigmoid (the default), hinge, ipo, "
                "simpo or alphapo. kto: kto (the default) or apo_zero_unpaired. Other recipes know "
                "nll alone"},
       {.name = "loss_weights",
        .field = STRATA_FIELD(preference.loss_weights),
        .resume = Resume::kTraining,
        .help = "dpo: a factor for each of several losses; default: 1"},
       {.name = "label_smoothing",
        .field = STRATA_FIELD(preference.label_smoothing),
        .resume = Resume::kTraining,
        .range = {.min = 0, .max = 0.5, .max_open = true},
        .help =
            "dpo, cpo: share of preferences that are the wrong way round, of the losses robust, "
            "exo_pair, aot and aot_unpaired (dpo), sigmoid, simpo and alphapo (cpo)"},
       {.name = "f_divergence_type",
        .field = STRATA_FIELD(preference.f_divergence_type),
        .resume = Resume::kTraining,
        .choices = {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"},
        .help = "dpo: what measures the distance from the reference"},
       {.name = "f_alpha_divergence_coef",
        .field = STRATA_FIELD(preference.f_alpha_divergence_coef),
        .resume = Resume::kTraining,
        .help = "dpo: the alpha of alpha_divergence"},
       {.name = "discopop_tau",
        .field = STRATA_FIELD(preference.discopop_tau),
        .resume = Resume::kTraining,
        .help = "dpo: temperature of the loss discopop"},
       {.name = "ld_alpha",
        .field = STRATA_FIELD(preference.ld_alpha),
        .resume = Resume::kTraining,
        .range = {.min = 0, .max = 1},
        .help =
            "dpo: what log-probabilities of tokens beyond the length of the shorter answer of a "
            "pair count, from 0 to 1 (LD-DPO); default: as the others"},
       {.name = "use_weighting",
        .field = STRATA_FIELD(preference.use_weighting),
        .resume = Resume::kTraining,
        .help = "dpo: the loss of a pair counts by how likely the model finds its answers (WPO)"},
       {.name = "sync_ref_model",
        .field = STRATA_FIELD(preference.sync_ref_model),
        .resume = Resume::kBoth,
        .help = "dpo, kto: the reference follows the model (TR-DPO), of which a second set of "
                "weights is kept"},
       {.name = "ref_model_mixup_alpha",
        .field = STRATA_FIELD(preference.ref_model_mixup_alpha),
        .resume = Resume::kTraining,
        .range = {.min = 0, .max = 1},
        .help = "dpo, kto: the part of the model's weights in those of a reference that follows"},
       {.name = "ref_model_sync_steps",
        .field = STRATA_FIELD(preference.ref_model_sync_steps),
        .resume = Resume::kTraining,
        .range = {.min = 1},
        .help = "dpo, kto: it follows behind each so many steps"},
       {.name = "disable_dropout",
        .field = STRATA_FIELD(preference.disable_dropout),
        .resume = Resume::kTraining,
        .help = "dpo, orpo, cpo, kto, reward: train without the dropout of model and adapter"},
       {.name = "truncation_mode",
        .field = STRATA_FIELD(preference.truncation_mode),
        .resume = Resume::kTraining,
        .choices = {"keep_start", "keep_end"},
        .help = "dpo: which end of a prompt with its answer beyond max_length tokens stays"},
       {.name = "precompute_ref_batch_size",
        .field = STRATA_FIELD(preference.precompute_ref_batch_size),
        .range = {.min = 1},
        .help =
            "dpo, kto: rows of a rank's batch while the reference is asked, before the first step; "
            "default: those of training and evaluation"},
       {.name = "desirable_weight",
        .field = STRATA_FIELD(preference.desirable_weight),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "kto: what the loss of a desirable answer counts, for sets with fewer of them",
        .peer = "KTOConfig"},
       {.name = "undesirable_weight",
        .field = STRATA_FIELD(preference.undesirable_weight),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "kto: the same of an undesirable one",
        .peer = "KTOConfig"},
       {.name = "cpo_alpha",
        .field = STRATA_FIELD(preference.cpo_alpha),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "cpo: what the likelihood of the preferred answer counts beside the loss of the "
                "pair; 0 is SimPO alone",
        .peer = "CPOConfig"},
       {.name = "simpo_gamma",
        .field = STRATA_FIELD(preference.simpo_gamma),
        .resume = Resume::kTraining,
        .help = "cpo: by how much the losses simpo and alphapo want the preferred answer to win",
        .peer = "CPOConfig"},
       {.name = "alpha",
        .field = STRATA_FIELD(preference.alpha),
        .resume = Resume::kTraining,
        .help = "cpo: shape of the rewards, (1 - p^-alpha) / alpha of an answer of probability p; "
                "0: log p",
        .peer = "CPOConfig"},
       {.name = "center_rewards_coefficient",
        .field = STRATA_FIELD(preference.center_rewards_coefficient),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "reward: weight of the squared sum of a pair's rewards, which keeps them around 0 "
                "(0.01 is usual)",
        .peer = "RewardConfig"}});
}

}  // namespace strata::config
