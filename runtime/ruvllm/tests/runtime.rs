//! The library as a host application uses it.

use ruvllm::{
    Completion, Conversation, Error, FinishReason, GenerateOptions, LoadProgress, Model, Prompt,
    Runtime, SamplingOptions, TextStream, embedded,
};
use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Runtime::builder().threads(2).build().expect("the demo model"));

const ONCE: Prompt<'static> = Prompt::Raw("Once upon a time");

fn greedy(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        sampling: SamplingOptions::greedy(),
        ..GenerateOptions::default()
    }
}

fn generate(runtime: &Runtime, prompt: Prompt<'_>, options: &GenerateOptions) -> Completion {
    runtime.generate(prompt, options, |_| ControlFlow::Continue(())).expect("a text")
}

/// Waits for a future on this thread, as the smallest of all executors.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[test]
fn texts_by_default_are_different_ones() {
    let options = GenerateOptions { max_tokens: 60, ..GenerateOptions::default() };
    let tale = || generate(&RUNTIME, ONCE, &options).text;
    let first = tale();
    // Two seeds may give the same text, three times in a row they do not.
    assert!((0..3).any(|_| tale() != first), "always: {first}");
}

#[test]
fn a_completion_has_its_tokens_usage_and_timings() {
    let done = generate(&RUNTIME, ONCE, &greedy(17));
    assert_eq!(done.token_ids.len(), 17);
    assert_eq!(done.usage().completion_tokens, 17);
    assert_eq!(done.usage().prompt_tokens, RUNTIME.tokens(ONCE).unwrap().len());
    assert!(done.timings().decode_tokens_per_second > 0.0);
    // The tokens are those of the text.
    let mut session = RUNTIME.session();
    let prompt = RUNTIME.tokens(ONCE).unwrap();
    session.generate(&prompt, &greedy(17), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(session.tokens().starts_with(&[&prompt[..], &done.token_ids[..16]].concat()));
}

#[test]
fn a_stream_gives_the_same_text_to_who_waits_and_to_who_polls() {
    let expected = generate(&RUNTIME, ONCE, &greedy(40));
    let same = |stream: &TextStream, text: &str| {
        let done = stream.completion().expect("an end");
        assert_eq!((text, &done.text), (&*expected.text, &expected.text));
        assert_eq!(done.token_ids, expected.token_ids);
        assert_eq!(done.usage(), expected.usage());
        assert!(done.timings().decode_tokens_per_second > 0.0);
    };
    let mut stream = RUNTIME.stream(ONCE, &greedy(40)).unwrap();
    assert!(stream.completion().is_none());
    let text: String = stream.by_ref().map(Result::unwrap).collect();
    same(&stream, &text);
    assert!(stream.next().is_none(), "nothing comes behind the end");

    let mut stream = RUNTIME.stream(ONCE, &greedy(40)).unwrap();
    let text = block_on(async {
        let mut text = String::new();
        while let Some(piece) = stream.next_piece().await {
            text += &piece.unwrap();
        }
        text
    });
    same(&stream, &text);
    assert_eq!(RUNTIME.stream(ONCE, &greedy(40)).unwrap().wait().unwrap().text, expected.text);
}

#[cfg(feature = "async")]
#[test]
fn a_stream_is_one_of_futures_core() {
    use futures_core::Stream;
    use std::future::poll_fn;
    use std::pin::Pin;
    let mut stream = RUNTIME.stream(ONCE, &greedy(8)).unwrap();
    let text = block_on(async {
        let mut text = String::new();
        while let Some(piece) = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await {
            text += &piece.unwrap();
        }
        text
    });
    assert_eq!(text, generate(&RUNTIME, ONCE, &greedy(8)).text);
}

#[test]
fn a_stream_is_cancelled_by_asking_or_by_dropping_it() {
    let runtime = Runtime::builder().threads(1).build().unwrap();
    let options = GenerateOptions { ignore_eos: true, ..greedy(usize::MAX) };
    let mut stream = runtime.stream(ONCE, &options).unwrap();
    stream.next().expect("a piece").unwrap();
    stream.cancel();
    let done = stream.wait().unwrap();
    assert_eq!(done.finish.reason, FinishReason::Cancelled);
    // One that goes on would leave this no memory or time.
    let dropped: Vec<_> = (0..40).map(|_| runtime.stream(ONCE, &options).unwrap()).collect();
    drop(dropped);
    assert_eq!(runtime.stream(ONCE, &greedy(8)).unwrap().wait().unwrap().token_ids.len(), 8);
    // The runtime may go before the stream does.
    let stream = runtime.stream(ONCE, &greedy(8)).unwrap();
    drop(runtime);
    assert_eq!(stream.wait().unwrap().token_ids.len(), 8);
}

#[test]
fn prompts_of_a_batch_are_computed_together_and_fail_alone() {
    let long = "Once upon a time ".repeat(400);
    let texts = ["Once upon a time", "One sunny morning", &*long, "The little cat"];
    let answers = RUNTIME.generate_batch(texts.map(Prompt::Raw), &greedy(24));
    assert_eq!(answers.len(), 4);
    for (text, answer) in texts.into_iter().zip(answers) {
        match answer {
            Ok(done) => {
                // Sums of several rows may be rounded otherwise than those of one.
                let alone = generate(&RUNTIME, Prompt::Raw(text), &greedy(24));
                assert_eq!(done.text[..12], alone.text[..12], "{text}");
                assert_eq!(done.token_ids.len(), 24);
            }
            Err(error) => {
                assert!(text.len() > 1000 && error.code() == "prompt_too_long", "{error}")
            }
        }
    }
    assert!(RUNTIME.generate_batch([], &greedy(1)).is_empty());
}

#[test]
fn texts_that_are_alike_have_vectors_that_are() {
    let texts = ["The cat slept in the sun.", "The cat slept in the sun!", "Stones are very heavy"];
    let vectors: Vec<Vec<f32>> =
        RUNTIME.embed_batch(texts).into_iter().map(|done| done.unwrap().vector).collect();
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    for vector in &vectors {
        assert_eq!(vector.len(), RUNTIME.model().config().dim);
        assert!((product(vector, vector) - 1.0).abs() < 1e-4);
    }
    assert!(product(&vectors[0], &vectors[1]) > product(&vectors[0], &vectors[2]));
    let alone = RUNTIME.embed(texts[0]).unwrap();
    assert!(product(&alone.vector, &vectors[0]) > 0.999);
    assert_eq!(alone.tokens, RUNTIME.tokens(Prompt::Raw(texts[0])).unwrap().len());
    let long = "Once upon a time ".repeat(400);
    assert_eq!(RUNTIME.embed(&long).unwrap_err().code(), "prompt_too_long");
}

#[test]
fn a_model_comes_from_bytes_and_is_shared_by_runtimes() {
    let bytes = embedded::demo_model().to_vec();
    let first = Runtime::builder().model_bytes(bytes, "tales.gguf").threads(1).build().unwrap();
    assert_eq!(first.model_name(), "tales.gguf");
    let second = Runtime::builder().shared_model(first.shared_model()).threads(2).build().unwrap();
    assert!(Arc::ptr_eq(&first.shared_model(), &second.shared_model()));
    let expected = generate(&RUNTIME, ONCE, &greedy(17));
    drop(first.clone());
    assert_eq!(generate(&first, ONCE, &greedy(17)).text, expected.text);
    drop(first);
    assert_eq!(generate(&second, ONCE, &greedy(17)).text, expected.text);
    // As a file from anywhere: its template does not run unless somebody says where.
    let refused = second.render(&[]).map_err(|error| error.code());
    assert_eq!(refused, Err("chat_template_no_renderer"));
    // Bytes need no alignment, and wrong ones are an error that names them.
    let shifted = [&[0][..], embedded::demo_model()].concat();
    let error = Model::from_bytes(&shifted[..], "shifted").err().expect("an error");
    assert!(error.to_string().contains("shifted"), "{error}");
    assert!(Model::from_bytes(&shifted[1..], "whole").is_ok());
}

#[test]
fn a_conversation_is_owned_and_goes_to_another_thread() {
    fn keep() -> Conversation {
        let mut conversation = RUNTIME.clone().conversation();
        conversation.send("Once upon a time", &greedy(8), |_| ControlFlow::Continue(())).unwrap();
        conversation
    }
    let conversation = std::thread::spawn(|| {
        let mut conversation = keep();
        conversation.send("The next day", &greedy(8), |_| ControlFlow::Continue(())).unwrap();
        conversation
    });
    let mut conversation = conversation.join().unwrap();
    let messages = conversation.messages().to_vec();
    assert_eq!(messages.len(), 4);
    // Set back to where it was, it says the same.
    conversation.set_messages(messages[..2].to_vec());
    let again = conversation.send("The next day", &greedy(8), |_| ControlFlow::Continue(()));
    assert_eq!(again.unwrap().text, messages[3].content);
}

#[test]
fn loading_says_how_far_it_is() {
    let seen: Arc<Mutex<Vec<LoadProgress>>> = Arc::default();
    let sink = seen.clone();
    let runtime = Runtime::builder()
        .threads(1)
        .on_progress(move |load| sink.lock().unwrap().push(load))
        .build()
        .unwrap();
    let seen = seen.lock().unwrap();
    let total = seen[0].total;
    assert!(total > 0 && total <= runtime.model().size_bytes());
    assert_eq!(seen[0].done, 0);
    assert!(seen.iter().all(|load| load.total == total) && seen.is_sorted_by_key(|load| load.done));
    assert_eq!(seen.last().map(|load| load.done), Some(total));
    assert!(seen.len() > 10, "{} steps", seen.len());
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_computed() {
    let sampling = SamplingOptions { temperature: f32::NAN, ..SamplingOptions::default() };
    let options = GenerateOptions { sampling, ..GenerateOptions::default() };
    let refused = RUNTIME.stream(ONCE, &options).map(drop).map_err(|error: Error| error.code());
    assert_eq!(refused, Err("invalid_option"));
}
