"""Have a shipped AT-DPT act at another temperature: python scripts/act_at.py NAME TEMPERATURE.

Its card says so afterwards, as if it had been trained with `acts_at`, which changes nothing else;
what the card tells about the model is measured anew.
"""

from __future__ import annotations

import argparse

import torch

from mithridate.errors import UserError
from mithridate.model.weights import find, load_model, write_model
from mithridate.settings import parse
from mithridate.stage_config import AdversarialConfig
from mithridate.training.adversarial import AdversarialTraining


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("temperature", type=float)
    options = parser.parse_args()
    try:
        model, card = load_model(options.name)
        if card["kind"] != "at-dpt":
            raise UserError(f"{options.name} was not trained against attackers; it has no acts_at")
        config = parse(AdversarialConfig, {**card["training"], "acts_at": options.temperature})
    except UserError as error:
        parser.error(str(error))
    torch.set_num_threads(config.threads)
    # The model it was trained from may not be at hand; the training only measures here.
    trained = config.model_copy(
        update={"start": options.name, "start_sha256": None, "rival": None, "rival_sha256": None}
    )
    trainee = AdversarialTraining(trained)
    trainee.model = model
    metrics = trainee.measure(config.final_tasks, trainee.rng.child("final"))
    card |= {
        "temperature": options.temperature,
        "training": config.to_json(),
        "config_hash": config.hash(),
        "metrics": metrics,
    }
    write_model(find(options.name), model.state_dict(), card)
    print(f"{options.name}: clean {metrics['clean_mean']:.2f} ± {metrics['clean_ci95']:.2f}")


if __name__ == "__main__":
    main()
