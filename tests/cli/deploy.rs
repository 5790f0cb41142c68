//! What `runtime/server/deploy` has to run a server for good: every option in it is one of the program's, and ports,
//! probes, users and directories fit each other. The image itself is not built here.

use crate::program::{Run, repository, ruvllm};
use crate::serving::Serving;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn read(name: &str) -> String {
    fs::read_to_string(repository().join("runtime/server/deploy").join(name)).unwrap()
}

/// Seconds between the signal to stop and the end of the process, by default.
fn stop_seconds() -> u64 {
    let options = fs::read_to_string(repository().join("runtime/server/ruvllm.toml")).unwrap();
    let drain = options.lines().find_map(|line| line.strip_prefix("# drain-timeout = ")).unwrap();
    drain.parse::<f64>().unwrap() as u64 + 5
}

/// Checks a configuration in whose file and arguments the directories of a deployment are those of a test.
fn check(args: &[&str], file: &str, replace: &[(&str, &str)]) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let mut file = file.to_owned();
    let mut args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let places = [("/var/lib/ruvllm", at("state")), ("/var/cache/ruvllm", at("cache"))];
    let places = places.iter().map(|(from, to)| (*from, to.as_str()));
    for (from, to) in places.chain(replace.iter().copied()) {
        file = file.replace(from, to);
        args.iter_mut().for_each(|arg| *arg = arg.replace(from, to));
    }
    let config = at("server.toml");
    fs::write(&config, file).unwrap();
    for arg in &mut args {
        *arg = arg.replace("/etc/ruvllm/server.toml", &config);
    }
    assert!(args.contains(&config), "{args:?}");
    args.extend(["--check", "--kernels", "native"].map(str::to_owned));
    ruvllm(&args)
}

/// A key for a client, as an option.
fn key() -> [String; 2] {
    let made = ruvllm(&["serve", "--new-key", "client"]);
    ["--api-key".to_owned(), made.text().lines().nth(1).unwrap().to_owned()]
}

#[test]
fn the_units_command_is_one_and_systemd_takes_its_time() {
    let unit = read("ruvllm.service");
    let value = |key: &str| {
        let line = unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_else(|| panic!("no {key}"))
    };
    let words: Vec<&str> = value("ExecStart").split_whitespace().skip(1).collect();
    let words: Vec<String> =
        words.iter().map(|w| w.replace("%S", "/var/lib").replace("%C", "/var/cache")).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    check(&words, "[server]\nlisten = '127.0.0.1:0'\n", &[]).text();
    assert!(value("ExecReload").contains("-HUP"));
    assert!(value("TimeoutStopSec").parse::<u64>().unwrap() > stop_seconds());
    for (key, name) in [("StateDirectory", "ruvllm"), ("CacheDirectory", "ruvllm")] {
        assert_eq!((value(key), value(&format!("{key}Mode"))), (name, "0700"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn systemd_finds_nothing_wrong_with_the_unit_and_little_exposed() {
    let analyze = |args: &[&str], unit: &Path| {
        let mut analyze = Command::new("systemd-analyze");
        analyze.arg("--no-pager").args(args).arg(unit).output().ok()
    };
    let dir = tempfile::tempdir().unwrap();
    let unit = dir.path().join("ruvllm.service");
    let program = env!("CARGO_BIN_EXE_ruvllm");
    fs::write(&unit, read("ruvllm.service").replace("/usr/local/bin/ruvllm", program)).unwrap();
    let Some(verified) = analyze(&["verify", "--man=no"], &unit) else {
        eprintln!("skipped: no systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && !said.contains("ruvllm.service:"), "{said}");
    // Of 100, where 0 has no network; `no` options are those of systemd before version 250.
    let security = ["security", "--offline=yes", "--threshold=15"];
    let exposed = analyze(&security, &unit).unwrap();
    let said = String::from_utf8_lossy(&exposed.stderr);
    if said.contains("unrecognized option") {
        eprintln!("skipped: this systemd-analyze cannot judge a file");
        return;
    }
    let table = String::from_utf8_lossy(&exposed.stdout);
    assert!(exposed.status.success(), "{table}\n{said}");
}

/// The instructions of the Dockerfile, with their continued lines.
fn instructions() -> Vec<(String, String)> {
    let text = read("Dockerfile").replace("\\\n", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let split = |line: &str| {
        let (name, rest) = line.split_once(' ').unwrap();
        (name.to_owned(), rest.trim().to_owned())
    };
    lines.map(split).collect()
}

#[test]
fn the_image_runs_the_program_for_nobody_in_particular() {
    let instructions = instructions();
    let all = |name: &str| -> Vec<&str> {
        let named = instructions.iter().filter(|(n, _)| n == name);
        named.map(|(_, rest)| rest.as_str()).collect()
    };
    let last = |name: &str| *all(name).last().unwrap_or_else(|| panic!("no {name}"));
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).unwrap();
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = ")).unwrap();
    let base = all("FROM");
    assert!(base[0].starts_with(&format!("rust:{}-slim-", version.trim_matches('"'))), "{base:?}");
    // Built for the C library that it runs with.
    let release = base[0].split(' ').next().unwrap().rsplit('-').next().unwrap();
    assert_eq!(base[1], format!("debian:{release}-slim"));
    let user = last("USER");
    assert!(user.split(':').all(|id| id.parse::<u32>().is_ok_and(|id| id > 999)), "{user}");
    assert!(all("ADD").is_empty());
    let own = all("COPY");
    for source in own.iter().filter(|copy| copy.starts_with("runtime/")) {
        let source = source.split_whitespace().next().unwrap();
        assert!(repository().join(source).is_file(), "{source}");
    }
    let list = |text: &str| -> Vec<String> { serde_json::from_str(text).unwrap() };
    assert_eq!(list(last("ENTRYPOINT")), ["ruvllm"]);
    let config = read("server.toml");
    let listen = config.lines().find_map(|line| line.strip_prefix("listen = ")).unwrap();
    assert_eq!(listen, format!("\"0.0.0.0:{}\"", last("EXPOSE")));
    // What is written to is there for this user, and outlives a read-only root.
    let made = last("RUN");
    let [uid, gid] = user.split(':').collect::<Vec<_>>()[..] else { panic!("{user}") };
    assert!(made.contains(&format!("-o {uid} -g {gid} -m 700")), "{made}");
    for volume in list(last("VOLUME")) {
        assert!(made.contains(&volume) && config.contains(&format!("\"{volume}/")), "{volume}");
    }
    let (command, key) = (list(last("CMD")), key());
    let command: Vec<&str> = command.iter().chain(&key).map(String::as_str).collect();
    check(&command, &config, &[]).text();
    check(&command[..3], &config, &[]).refused(&["needs API keys"]);
}

#[cfg(unix)]
#[test]
fn the_images_health_check_tells_a_server_from_none() {
    let instructions = instructions();
    let (_, check) = instructions.iter().find(|(name, _)| name == "HEALTHCHECK").unwrap();
    let check: Vec<String> = serde_json::from_str(check.split_once("CMD ").unwrap().1).unwrap();
    let serving = Serving::start(&["--kernels", "native"]);
    let port = serving.address.rsplit_once(':').unwrap().1.to_owned();
    let healthy = || {
        let script = check[2].replace("/8080", &format!("/{port}"));
        let mut shell = Command::new(&check[0]);
        shell.arg(&check[1]).arg(script).stderr(Stdio::null()).status().unwrap().success()
    };
    assert!(healthy());
    drop(serving);
    assert!(!healthy());
}

/// The documents of a YAML text, read by Python; `None` where there is no parser.
fn yaml(text: &str) -> Option<Vec<Value>> {
    const SCRIPT: &str =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.argv[1]))))";
    let own = repository().join("target/clients/bin/python");
    let pythons = [own, "python3".into()];
    let works = |python: &&PathBuf| {
        let yaml = Command::new(python).args(["-c", "import yaml"]).output();
        yaml.is_ok_and(|output| output.status.success())
    };
    let Some(python) = pythons.iter().find(works) else {
        eprintln!("skipped: no Python with PyYAML (tests/clients/requirements.txt)");
        return None;
    };
    let parsed = Command::new(python).args(["-c", SCRIPT, text]).output().unwrap();
    let complaint = String::from_utf8_lossy(&parsed.stderr);
    assert!(parsed.status.success(), "{complaint}");
    Some(serde_json::from_slice(&parsed.stdout).unwrap())
}

#[test]
fn ports_probes_and_directories_of_the_manifests_fit_the_server() {
    let Some(sets) = yaml(&read("kubernetes/statefulset.yaml")) else { return };
    let Some(services) = yaml(&read("kubernetes/service.yaml")) else { return };
    let (set, config) = (&sets[0], read("kubernetes/server.toml"));
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    // The port that is listened on, by its name from the services and the probes.
    let port = &container["ports"][0];
    let listen = format!("listen = \"0.0.0.0:{}\"", port["containerPort"]);
    assert!(config.contains(&listen), "{listen}");
    for service in &services {
        assert_eq!(service["spec"]["ports"][0]["targetPort"], port["name"]);
    }
    assert!(services.iter().any(|s| s["metadata"]["name"] == set["spec"]["serviceName"]));
    for (probe, path) in
        [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")]
    {
        let asked = &container[probe]["httpGet"];
        assert_eq!((&asked["path"], &asked["port"]), (&json!(path), &port["name"]), "{probe}");
    }
    // One failure is none yet, as the guide says.
    assert!(container["livenessProbe"]["failureThreshold"].as_u64() > Some(2));
    assert!(pod["terminationGracePeriodSeconds"].as_u64() > Some(stop_seconds()));

    let security = &container["securityContext"];
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    let user = pod["securityContext"]["runAsUser"].as_u64().unwrap();
    assert!(read("Dockerfile").contains(&format!("USER {user}:{user}")));

    // Each directory of the configuration is mounted, and those that are written to can be.
    let mounts = container["volumeMounts"].as_array().unwrap();
    let mounted = |path: &str| {
        let is_in = |mount: &&Value| path.starts_with(mount["mountPath"].as_str().unwrap());
        mounts.iter().find(is_in).unwrap_or_else(|| panic!("{path} is not mounted"))
    };
    let setting = |name: &str| -> String {
        let line = config.lines().find_map(|line| line.strip_prefix(&format!("{name} = ")));
        line.unwrap_or_else(|| panic!("no {name}")).trim_matches('"').to_owned()
    };
    for (name, writable) in [
        ("model", false),
        ("trust", false),
        ("watch-packs", false),
        ("state-dir", true),
        ("cache-dir", true),
    ] {
        let mount = mounted(&setting(name));
        assert_eq!(mount["readOnly"] != true, writable, "{name}");
        let volumes = pod["volumes"].as_array().unwrap().iter();
        let claims = set["spec"]["volumeClaimTemplates"].as_array().unwrap().iter();
        let mut names = volumes.map(|v| &v["name"]).chain(claims.map(|c| &c["metadata"]["name"]));
        assert!(names.any(|name| *name == mount["name"]), "{mount}");
    }
    let cpus = container["resources"]["requests"]["cpu"].as_str().unwrap();
    assert_eq!(setting("threads"), cpus);

    // The program takes the arguments and the files.
    let args: Vec<&str> =
        container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap()).collect();
    let dir = tempfile::tempdir().unwrap();
    let trust = dir.path().join("trust.toml");
    fs::write(&trust, read("kubernetes/trust.toml")).unwrap();
    let demo = repository().join("runtime/ruvllm/demo/tales-q8_0.gguf");
    let places = [
        ("/etc/ruvllm/trust.toml", trust.to_str().unwrap()),
        ("/srv/packs", dir.path().to_str().unwrap()),
        ("/models/model.gguf", demo.to_str().unwrap()),
    ];
    check(&args, &config, &places).text();
}

#[cfg(unix)]
#[test]
fn a_pack_that_is_added_to_the_kustomization_is_in_the_config_map() {
    let dir = tempfile::tempdir().unwrap();
    for name in
        ["kustomization.yaml", "statefulset.yaml", "service.yaml", "server.toml", "trust.toml"]
    {
        fs::write(dir.path().join(name), read(&format!("kubernetes/{name}"))).unwrap();
    }
    let kustomize = || {
        let mut kubectl = Command::new("kubectl");
        kubectl.arg("kustomize").arg(dir.path()).env("HOME", dir.path());
        kubectl.env_remove("KUBECONFIG").output().ok()
    };
    let Some(built) = kustomize().filter(|built| {
        built.status.success() || !String::from_utf8_lossy(&built.stderr).contains("unknown")
    }) else {
        eprintln!("skipped: no kubectl that knows kustomize");
        return;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    // No text, as a pack is none.
    fs::write(dir.path().join("my-kernels.rkp"), [0, 159, 146, 150]).unwrap();
    let file = dir.path().join("kustomization.yaml");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("files: []", "files: [my-kernels.rkp]")).unwrap();
    let built = kustomize().unwrap();
    let Some(built) = yaml(&String::from_utf8_lossy(&built.stdout)) else { return };
    let named = |kind: &str, name: &str| {
        let is_it = |d: &&Value| d["kind"] == kind && d["metadata"]["name"] == name;
        built.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}: {built:?}"))
    };
    assert_eq!(named("ConfigMap", "ruvllm-packs")["binaryData"]["my-kernels.rkp"], "AJ+Slg==");
    let config = &named("ConfigMap", "ruvllm-config")["data"]["server.toml"];
    assert!(config.as_str().unwrap().contains("watch-packs = \"/srv/packs\""));
    let (set, service) = (named("StatefulSet", "ruvllm"), named("Service", "ruvllm"));
    let labels = &set["spec"]["template"]["metadata"]["labels"];
    assert_eq!(set["spec"]["selector"]["matchLabels"], *labels);
    assert_eq!(service["spec"]["selector"], *labels);
    assert!(labels.as_object().is_some_and(|labels| !labels.is_empty()));
}
