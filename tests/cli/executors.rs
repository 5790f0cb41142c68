//! Choosing what runs kernels.

use crate::program::ruvllm;
use ruvllm_tests::wamr;

const BUILD: wamr::Build =
    wamr::Build { wamr: cfg!(feature = "wamr"), bundled: cfg!(feature = "wamr-bundled") };

#[test]
fn an_executor_that_is_not_there_is_an_error_that_says_what_to_do() {
    let library = ["--wamr-lib", "no/such/libiwasm.so"];
    let told = if BUILD.wamr { library[1] } else { "build with the feature `wamr`" };
    let run = ruvllm(&["run", "-n", "1", library[0], library[1]]);
    assert!(run.code != Some(0) && run.stderr.contains(told), "{}", run.stderr);
    if !BUILD.bundled {
        let told = if BUILD.wamr { "--wamr-lib" } else { told };
        let run = ruvllm(&["run", "-n", "1", "--executor", "wamr"]);
        assert!(run.code != Some(0) && run.stderr.contains(told), "{}", run.stderr);
    }
    assert_eq!(ruvllm(&["run", "-n", "1", "--wamrc", "wamrc"]).code, Some(2));
}

#[test]
fn the_demo_models_story_on_wamr_is_that_of_deterministic_kernels() {
    if !wamr::is_there(BUILD, wamr::Mode::Interpreted) {
        return;
    }
    let story = |options: &[&str]| {
        let always = ["run", "--temperature", "0", "-n", "24", "--strict"];
        let run = ruvllm(&[&always[..], options].concat());
        assert_eq!(run.code, Some(0), "{}", run.stderr);
        run.stdout
    };
    let library = wamr::library();
    let mut options = vec!["--executor", "wamr"];
    if let Some(library) = &library {
        options.extend(["--wamr-lib", library.to_str().expect("a path of UTF-8")]);
    }
    let expected = story(&["--deterministic"]);
    assert_eq!(story(&options), expected);
    options.extend(["--device-class", "embedded"]);
    assert_eq!(story(&options), expected);
    let explained =
        ruvllm(&[&["kernels", "explain", "rmsnorm(f32,f32)->f32"], &options[..]].concat());
    let told = "runs on wamr, which the configuration names";
    assert!(explained.stdout.contains(told), "{}{}", explained.stdout, explained.stderr);
}
