//! The server's life: listening, serving on a thread of its own, and going in peace.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures_util::future::try_join_all;
use hyper_util::rt::TokioTimer;
use ruvllm_engine::chat::Renderer;
use ruvllm_engine::{Adapter, Engine};
use ruvllm_host::Supervisor;
use tokio::runtime::Runtime;

use crate::app::{App, Listener, routes};
use crate::error::ServerError;
use crate::grammar::GrammarCompiler;
use crate::models::TextEncoder;
use crate::options::ServerOptions;
use crate::reload::{Reloaded, Reloader};
use crate::tls::Tls;

/// Threads for what takes longer than a glance.
const HELPERS: usize = 16;
/// Those that clients may have: the others are as many as administrators need, who wait for no client.
pub(crate) const CLIENT_HELPERS: usize = HELPERS - 4;
/// Time for the head of a request to come in whole, and for a TLS handshake.
const HEAD: Duration = Duration::from_secs(15);
/// Time for the last answers to be written once nothing is computed any more.
const CLOSE: Duration = Duration::from_secs(2);

/// What a server serves; an engine alone becomes one by [`From`].
#[derive(Clone)]
pub struct Served {
    /// What computes.
    pub engine: Engine,
    /// What the texts of the model are computed with beside its weights.
    pub adapter: Option<Adapter>,
    /// Further models: the same weights with an adapter each, by the name under which requests ask for it.
    pub adapters: Vec<(String, Adapter)>,
    /// Models that make vectors of texts and nothing else, by the name under which requests ask for them.
    pub encoders: Vec<(String, Arc<dyn TextEncoder>)>,
    /// What changes the kernels of the engine's host. An admin listener needs one; without such a
    /// listener its figures are shown all the same.
    pub supervisor: Option<Arc<Supervisor>>,
    /// Where the chat template runs; with none, conversations are refused.
    pub renderer: Renderer,
    /// Where schemas and tools become grammars; with none, requests that need one are refused.
    pub grammars: GrammarCompiler,
    /// What reads the configuration anew for [`Server::reload`]; with none, that is refused.
    pub reloader: Option<Reloader>,
}

impl From<Engine> for Served {
    fn from(engine: Engine) -> Served {
        Served {
            engine,
            adapter: None,
            adapters: Vec::new(),
            encoders: Vec::new(),
            supervisor: None,
            renderer: Renderer::None,
            grammars: GrammarCompiler::None,
            reloader: None,
        }
    }
}

/// A running server. [`Server::stop`] ends it in peace; dropped, it ends at once.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    handle: Handle<SocketAddr>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Listens, and serves from then on.
    ///
    /// # Errors
    /// What [`ServerOptions::check`] refuses, [`ServerError::SupervisorRequired`], an address that
    /// cannot be had, an unusable certificate or chat template, what the scheduler refuses, and
    /// [`ServerError::Runtime`] where the system gives no further thread.
    pub fn start(served: Served, options: ServerOptions) -> Result<Server, ServerError> {
        options.check()?;
        if options.admin.admin_listen.is_some() && served.supervisor.is_none() {
            return Err(ServerError::SupervisorRequired);
        }
        let tls = options.tls()?.map(Tls::new);
        let config = tls.as_ref().map(Tls::config);
        let failed = |source| ServerError::Runtime { source };
        let (listener, address) = listen("listen", options.listen)?;
        let admin = options.admin.admin_listen.map(|address| listen("admin-listen", address));
        let admin = admin.transpose()?;
        let admin_address = admin.as_ref().map(|(_, address)| *address);
        let app = Arc::new(App::new(served, options, tls)?);
        if !address.ip().is_loopback() && config.is_none() {
            tracing::warn!(%address, "keys and texts travel in the clear; use --tls-cert, or HTTPS in front");
        }
        let runtime = runtime("ruvllm-helper").map_err(failed)?;
        let handle = Handle::new();
        let clients = routes(&app, Listener::Client);
        let mut serving = vec![serve(listener, config.clone(), clients, handle.clone())];
        if let Some((listener, _)) = admin {
            let admins = routes(&app, Listener::Admin);
            serving.push(serve(listener, config, admins, handle.clone()));
        }
        let serve = move || {
            let ended = runtime.block_on(try_join_all(serving)).map(drop);
            // A pack that is being compiled for nobody any more is not waited for.
            runtime.shutdown_timeout(CLOSE);
            ended
        };
        let thread = std::thread::Builder::new().name("ruvllm-http".to_owned()).spawn(serve);
        let thread = Some(thread.map_err(failed)?);
        Ok(Server { app, address, admin_address, handle, thread })
    }

    /// Where it listens; the port that was found where none was given.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where administrators connect, if they may.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The model's id in answers.
    pub fn model(&self) -> &str {
        &self.app.model
    }

    /// Whether requests can be computed and answered. Once they cannot, after a panic, they never can
    /// again: the process should end, so that whoever supervises it starts it anew.
    pub fn is_alive(&self) -> bool {
        let serving = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        serving && self.app.scheduler.is_alive()
    }

    /// Reads the configuration anew, as [`Served::reloader`] does: keys, the certificate, and whose packs are taken
    /// are different from then on, all of them or none. `operator` is who the log and the history name.
    ///
    /// # Errors
    /// What is wrong with the configuration; everything is as it was then.
    pub fn reload(&self, operator: &str) -> Result<Reloaded, ServerError> {
        self.app.reload(operator)
    }

    /// Refuses new requests, lets those that are being answered finish within
    /// [`Limits::drain_timeout`](crate::Limits::drain_timeout), and stops listening.
    ///
    /// # Errors
    /// [`ServerError::Runtime`] where serving had failed.
    pub fn stop(mut self) -> Result<(), ServerError> {
        self.app.draining.store(true, Ordering::Relaxed);
        if self.app.scheduler.drain(self.app.options.limits.drain_timeout) {
            self.handle.graceful_shutdown(Some(CLOSE));
        } else {
            // What is not finished is cancelled with its connection.
            self.handle.shutdown();
        }
        self.join().map_err(|source| ServerError::Runtime { source })
    }

    fn join(&mut self) -> io::Result<()> {
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.shutdown();
        // Nobody is left to tell.
        let _ = self.join();
    }
}

/// Listens on the address that `option` gave; gives the one that was found where it names no port.
fn listen(
    option: &'static str,
    address: SocketAddr,
) -> Result<(TcpListener, SocketAddr), ServerError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bind().map_err(|source| ServerError::Listen { option, address, source })
}

/// What drives sockets and timers on the thread that calls it, with [`HELPERS`] of this name.
///
/// They are there from the start and for good. Started when none is idle, and ended when one is for long,
/// their number would follow rare coincidences of requests, and nobody could tell that from a leak.
fn runtime(helpers: &str) -> io::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .thread_name(helpers)
        .max_blocking_threads(HELPERS)
        .thread_keep_alive(Duration::MAX)
        .enable_all()
        .build()?;
    // tokio manages with fewer helpers where the system refuses one, but panics where it refuses the first.
    let first = std::thread::Builder::new().name(helpers.to_owned()).spawn(|| ())?;
    let _ = first.join();
    // None is idle before the gate opens, so each that is asked to pass it is a new one.
    let gate = Arc::new(Mutex::new(()));
    let closed = gate.lock();
    for _ in 0..HELPERS {
        let gate = Arc::clone(&gate);
        runtime.spawn_blocking(move || drop(gate.lock()));
    }
    drop(closed);
    Ok(runtime)
}

/// Serves `routes` on one listener until its handle says otherwise.
async fn serve(
    listener: TcpListener,
    tls: Option<RustlsConfig>,
    routes: Router,
    handle: Handle<SocketAddr>,
) -> io::Result<()> {
    let service = routes.into_make_service();
    let mut server = axum_server::from_tcp(listener)?.handle(handle).http1_only();
    server.http_builder().http1().timer(TokioTimer::new()).header_read_timeout(HEAD);
    match tls {
        Some(config) => {
            let tls = |plain| RustlsAcceptor::new(config).handshake_timeout(HEAD).acceptor(plain);
            server.map(tls).serve(service).await
        }
        None => server.serve(service).await,
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use clap::{Args as _, Command, FromArgMatches as _};
    use ruvllm_engine::scheduler::Request;
    use ruvllm_engine::{EngineConfig, Model};
    use ruvllm_host::{Host, HostConfig};

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn all_helpers_are_there_from_the_start() {
        const NAME: &str = "of-this-test";
        let count = || {
            let tasks = std::fs::read_dir("/proc/self/task").unwrap();
            // A thread of another test may be gone by now.
            let name = |task: io::Result<std::fs::DirEntry>| {
                std::fs::read_to_string(task.unwrap().path().join("comm")).ok()
            };
            tasks.filter_map(name).filter(|name| name.trim_end() == NAME).count()
        };
        let runtime = runtime(NAME).unwrap();
        // A thread sets its name itself.
        let begun = std::time::Instant::now();
        while count() < HELPERS {
            assert!(begun.elapsed() < Duration::from_secs(10), "{} of {HELPERS}", count());
            std::thread::sleep(Duration::from_millis(5));
        }
        let work = (0..4 * HELPERS).map(|_| runtime.spawn_blocking(|| ())).collect::<Vec<_>>();
        runtime.block_on(futures_util::future::join_all(work));
        assert_eq!(count(), HELPERS);
    }

    /// A server of the demo model with these options over the defaults.
    fn start(args: &[&str]) -> Server {
        let command = ServerOptions::augment_args(Command::new("test"));
        let line = ["test", "--listen", "127.0.0.1:0"];
        let given = command.get_matches_from(line.iter().chain(args));
        let options = ServerOptions::from_arg_matches(&given).unwrap();
        let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../ruvllm/demo/tales-q8_0.gguf");
        let model = Arc::new(Model::open(demo.as_ref()).unwrap());
        let config =
            EngineConfig { threads: 1, memory: Some(256 << 20), ..EngineConfig::default() };
        let engine = Engine::new(model, Host::new(HostConfig::default()).unwrap(), config).unwrap();
        Server::start(engine.into(), options).unwrap()
    }

    /// The status and the error of a server's health.
    fn health(server: &Server) -> (u16, String) {
        let config = ureq::Agent::config_builder().http_status_as_error(false).build();
        let url = format!("http://{}/health", server.address());
        let mut answer = ureq::Agent::new_with_config(config).get(url).call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    #[test]
    fn a_scheduler_that_is_at_one_step_for_too_long_is_not_healthy_until_it_goes_on() {
        let server = start(&["--request-timeout", "0.2"]);
        assert_eq!(health(&server).0, 200);
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = Mutex::new(held);
        let sink = Box::new(move |_| {
            let _ = held.lock().map(|held| held.recv());
            ControlFlow::Break(())
        });
        let request = Request::new(vec![1], Default::default());
        let _ticket = server.app.scheduler.submit(request, sink).unwrap();
        let begun = std::time::Instant::now();
        let (status, error) = loop {
            let (status, error) = health(&server);
            if status == 503 || begun.elapsed() > Duration::from_secs(20) {
                break (status, error);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status == 503 && error.contains("scheduler_stuck"), "{status} {error}");
        drop(release);
        assert!(server.app.scheduler.drain(Duration::from_secs(10)));
        assert_eq!(health(&server).0, 200);
    }

    /// A sink that is dropped outside of what the scheduler catches.
    struct PanicsWhenDropped;

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("a sink of a test panics when it is dropped, as it should");
        }
    }

    #[test]
    fn a_server_whose_scheduler_panicked_is_not_alive_and_stops_at_once() {
        let server = start(&[]);
        assert!(server.is_alive());
        let bomb = PanicsWhenDropped;
        let sink = Box::new(move |_| {
            let _ = &bomb;
            ControlFlow::Continue(())
        });
        let request = Request::new(vec![1], Default::default());
        let _ticket = server.app.scheduler.submit(request, sink).unwrap();
        while server.is_alive() {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (status, error) = health(&server);
        assert!(status == 503 && error.contains("scheduler_ended"), "{status} {error}");
        let begun = std::time::Instant::now();
        server.stop().unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}
