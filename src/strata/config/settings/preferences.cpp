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
            "dpo, kto: how strongly the model is held to the reference; for ipo the paper's tau. "
            "cpo: factor of the difference between the two answers. orpo: weight of their odds "
            "relative to the likelihood of the preferred one (the paper's lambda)"},
       {.name = "loss_type",
        .field = STRATA_FIELD(preference.loss_type),
        .resume = Resume::kTraining,
        .help = "dpo: one loss or several, which are added up: sigmoid (the default), hinge, ipo, "
                "exo_pair, nca_pair, robust, bco_pair, sppo_hard, aot, aot_unpaired, apo_zero, "
                "apo_down, discopop, sft, sigmoid_norm. cpo: sigmoid (the default), hinge, ipo, "
                "simpo or alphapo. kto: kto (the default) or apo_zero_unpaired. Other recipes have "
                "only nll"},
       {.name = "loss_weights",
        .field = STRATA_FIELD(preference.loss_weights),
        .resume = Resume::kTraining,
        .help = "dpo: a factor for each of several losses; default: 1"},
       {.name = "label_smoothing",
        .field = STRATA_FIELD(preference.label_smoothing),
        .resume = Resume::kTraining,
        .range = {.min = 0, .max = 0.5, .max_open = true},
        .help =
            "dpo, cpo: assumed share of preferences that are the wrong way round, in the losses "
            "robust, exo_pair, aot and aot_unpaired (dpo), sigmoid, simpo and alphapo (cpo)"},
       {.name = "f_divergence_type",
        .field = STRATA_FIELD(preference.f_divergence_type),
        .resume = Resume::kTraining,
        .choices = {"reverse_kl", "forward_kl", "js_divergence", "alpha_divergence"},
        .help = "dpo: divergence that measures the distance from the reference"},
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
            "dpo: weight, from 0 to 1, of the log-probabilities of tokens beyond the length of a "
            "pair's shorter answer (LD-DPO); default: as the others"},
       {.name = "use_weighting",
        .field = STRATA_FIELD(preference.use_weighting),
        .resume = Resume::kTraining,
        .help = "dpo: weight the loss of a pair by how likely the model finds its answers (WPO)"},
       {.name = "sync_ref_model",
        .field = STRATA_FIELD(preference.sync_ref_model),
        .resume = Resume::kBoth,
        .help = "dpo, kto: the reference follows the model (TR-DPO), which keeps a second set of "
                "weights"},
       {.name = "ref_model_mixup_alpha",
        .field = STRATA_FIELD(preference.ref_model_mixup_alpha),
        .resume = Resume::kTraining,
        .range = {.min = 0, .max = 1},
        .help = "dpo, kto: share of the model's weights that sync_ref_model mixes into the "
                "reference"},
       {.name = "ref_model_sync_steps",
        .field = STRATA_FIELD(preference.ref_model_sync_steps),
        .resume = Resume::kTraining,
        .range = {.min = 1},
        .help = "dpo, kto: steps between two updates of the reference by sync_ref_model"},
       {.name = "disable_dropout",
        .field = STRATA_FIELD(preference.disable_dropout),
        .resume = Resume::kTraining,
        .help = "dpo, orpo, cpo, kto, reward: train without dropout in model and adapter"},
       {.name = "truncation_mode",
        .field = STRATA_FIELD(preference.truncation_mode),
        .resume = Resume::kTraining,
        .choices = {"keep_start", "keep_end"},
        .help = "dpo: which end is kept of a prompt and answer with more than max_length tokens"},
       {.name = "precompute_ref_batch_size",
        .field = STRATA_FIELD(preference.precompute_ref_batch_size),
        .range = {.min = 1},
        .help =
            "dpo, kto: rows per batch on each rank while the reference is evaluated, before the "
            "first step; default: those of training and evaluation"},
       {.name = "desirable_weight",
        .field = STRATA_FIELD(preference.desirable_weight),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "kto: weight of the loss of a desirable answer, for data with fewer of them",
        .peer = "KTOConfig"},
       {.name = "undesirable_weight",
        .field = STRATA_FIELD(preference.undesirable_weight),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "kto: the same for an undesirable one",
        .peer = "KTOConfig"},
       {.name = "cpo_alpha",
        .field = STRATA_FIELD(preference.cpo_alpha),
        .resume = Resume::kTraining,
        .range = {.min = 0},
        .help = "cpo: weight of the preferred answer's likelihood relative to the loss of the "
                "pair; 0: SimPO alone",
        .peer = "CPOConfig"},
       {.name = "simpo_gamma",
        .field = STRATA_FIELD(preference.simpo_gamma),
        .resume = Resume::kTraining,
        .help = "cpo: margin by which the losses simpo and alphapo want the preferred answer to "
                "win",
        .peer = "CPOConfig"},
       {.name = "alpha",
        .field = STRATA_FIELD(preference.alpha),
        .resume = Resume::kTraining,
        .help = "cpo: shape of the rewards, (1 - p^-alpha) / alpha for an answer of probability p; "
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
