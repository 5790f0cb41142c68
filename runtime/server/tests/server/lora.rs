//! One model with several LoRA adapters, each a model of its own to clients.

use std::thread;

use ruvllm_engine::Adapter;
use ruvllm_server::{Served, Server};
use serde_json::{Value, json};

use crate::common::{Service, engine, events, model, options, repository, served};

/// The demo model, with its adapter as `pirate`, and with half of that as `half/pirate`.
fn lora() -> Served {
    let engine = engine();
    let path = repository().join("runtime/ruvllm/demo/adapters/pirate");
    let open = |(name, scale): (&str, f32)| {
        (name.to_owned(), Adapter::open(&engine, &path, scale).unwrap())
    };
    let adapters = [("pirate", 1.0), ("half/pirate", 0.5)].map(open).into();
    Served { adapters, ..served(engine.clone()) }
}

fn tell(service: &Service, model: Option<&str>, tokens: usize) -> Value {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0});
    if let Some(model) = model {
        body["model"] = model.into();
    }
    service.ok("/v1/completions", &body)
}

fn text(answer: &Value) -> String {
    answer["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn each_adapter_is_a_model_that_requests_choose_by_name() {
    let service = Service::of(lora(), &[]);
    let list = service.get("/v1/models").json();
    let ids: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, [model(), "pirate", "half/pirate"]);
    let one = service.get("/v1/models/half/pirate").json();
    assert_eq!((&one["id"], &one["parent"]), (&json!("half/pirate"), &json!(model())));
    assert_eq!(list["data"][0].get("parent"), None);

    let (plain, pirate) = (tell(&service, None, 24), tell(&service, Some("pirate"), 24));
    assert_eq!((&plain["model"], &pirate["model"]), (&json!(model()), &json!("pirate")));
    assert!(text(&pirate).contains("salty sea"), "{pirate}");
    assert!(!text(&plain).contains("salty sea"), "{plain}");
    assert_eq!(text(&tell(&service, Some(model()), 24)), text(&plain));

    let body = json!({"model": "half/pirate", "prompt": "Once", "max_tokens": 3, "stream": true});
    let chunks = events(&service.post("/v1/completions", &body).text);
    assert!(chunks.iter().all(|chunk| chunk["model"] == "half/pirate"), "{chunks:?}");
    let vector = |model: &str| {
        let answer = service.ok("/v1/embeddings", &json!({"model": model, "input": "The sea"}));
        assert_eq!(answer["model"], model);
        answer["data"][0]["embedding"].clone()
    };
    assert_ne!(vector("pirate"), vector(model()));

    let unknown = service.post("/v1/completions", &json!({"model": "parrot", "prompt": "Once"}));
    unknown.refused(404, Some("model"), "model_not_found");
    for name in [model(), "pirate", "half/pirate"] {
        assert!(unknown.text.contains(&format!("`{name}`")), "{}", unknown.text);
    }
}

#[test]
fn sequences_of_different_adapters_are_computed_in_one_batch() {
    let service = &Service::of(lora(), &[]);
    let models = [model(), "pirate", "half/pirate"];
    let alone = models.map(|model| text(&tell(service, Some(model), 24)));
    let shared = || {
        let steps = ["ruvllm_step_sequences_count", "ruvllm_step_sequences_bucket{le=\"1\"}"];
        let [all, alone] = service.metrics(steps);
        all - alone
    };
    assert_eq!(shared(), 0.0);
    thread::scope(|scope| {
        // Until they have met in a step.
        while shared() == 0.0 {
            let ask = |model| scope.spawn(move || text(&tell(service, Some(model), 24)));
            let together = models.map(ask).map(|thread| thread.join().unwrap());
            assert_eq!(together, alone);
        }
    });
}

#[test]
fn a_prompt_that_one_adapter_has_read_is_not_in_the_cache_of_another() {
    let service = Service::of(lora(), &[]);
    let prompt = "Once upon a time there was a little girl named Wren. ".repeat(12);
    let cached = |model: &str| {
        let body = json!({"model": model, "prompt": prompt, "max_tokens": 1, "temperature": 0});
        let usage = &service.ok("/v1/completions", &body)["usage"];
        usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    for model in [model(), "pirate", "half/pirate"] {
        assert_eq!(cached(model), 0, "{model}");
        assert!(cached(model) >= 64, "{model}");
    }
}

#[test]
fn two_models_of_one_name_are_refused() {
    let mut twice = lora();
    twice.adapters[1].0 = "pirate".to_owned();
    let error = Server::start(twice, options(&[])).err().unwrap();
    assert_eq!(error.code(), "model_name");
    assert!(error.to_string().contains("`pirate`"), "{error}");
}
