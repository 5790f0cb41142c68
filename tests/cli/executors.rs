//! Choosing what runs kernels.

use crate::program::{caches, ruvllm};
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
    assert_eq!(story(&[&options[..], &["--deterministic"]].concat()), expected);
    let explained =
        ruvllm(&[&["kernels", "explain", "rmsnorm(f32,f32)->f32"], &options[..]].concat());
    let told = "runs on wamr, which the configuration names";
    assert!(explained.stdout.contains(told), "{}{}", explained.stdout, explained.stderr);
}

#[cfg(unix)]
#[test]
fn who_asks_to_stop_does_not_wait_for_a_compiler_that_hangs_on_wamr() {
    use nix::sys::signal::{Signal, kill};
    use nix::unistd::Pid;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, Instant};

    if !wamr::is_there(BUILD, wamr::Mode::Compiled) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let [wamrc, started] = ["wamrc", "started"].map(|name| dir.path().join(name));
    // The sleeper has the number that is written.
    let script = format!("#!/bin/sh\necho $$ > '{}'\nexec /bin/sleep 600\n", started.display());
    std::fs::write(&wamrc, script).expect("a script");
    std::fs::set_permissions(&wamrc, std::fs::Permissions::from_mode(0o700)).expect("a mode");
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_ruvllm"))
        .args(["run", "-n", "1", "--executor", "wamr", "--no-cache", "--wamrc"])
        .arg(&wamrc)
        .arg("--wamr-lib")
        .arg(wamr::library().expect("a library"))
        .env("XDG_CACHE_HOME", caches())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let begun = Instant::now();
    let compiler = loop {
        let written = std::fs::read_to_string(&started).unwrap_or_default();
        if let Ok(pid) = written.trim().parse::<i32>() {
            break Pid::from_raw(pid);
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no compiler starts");
        std::thread::sleep(Duration::from_millis(10));
    };
    let asked = Instant::now();
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).expect("it runs");
    let status = child.wait().expect("it ends");
    // A compiler may take a minute here, and is asked for each kernel.
    assert!(asked.elapsed() < Duration::from_secs(30), "{:?}", asked.elapsed());
    let mut told = String::new();
    let mut stderr = child.stderr.take().expect("piped");
    std::io::Read::read_to_string(&mut stderr, &mut told).expect("text");
    assert_eq!((status.code(), told.contains("error")), (Some(130), false), "{told}");
    assert!(kill(compiler, None).is_err(), "it has outlived its parent");
}
