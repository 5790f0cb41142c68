//! What handlers share, and which address leads to which.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::Request;
use axum::middleware;
use axum::routing::{get, post};
use ruvllm_engine::chat::ChatTemplate;
use ruvllm_engine::{Engine, Scheduler, SchedulerConfig};
use tokio::sync::Semaphore;

use crate::admin::{self, Supervised};
use crate::bodies::Bodies;
use crate::error::{ApiError, ServerError};
use crate::grammar::Grammars;
use crate::health::{self, Helpers};
use crate::metrics::Metrics;
use crate::models::Models;
use crate::options::{Limits, ServerOptions};
use crate::reload::{Access, Reloader};
use crate::server::{CLIENT_HELPERS, Served};
use crate::tls::Tls;
use crate::tools::Teaching;
use crate::{
    anthropic, chat, completions, dashboard, embeddings, http, metrics, models, responses, status,
    tokens,
};

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listener {
    Client,
    Admin,
}

/// What handlers share.
pub(crate) struct App {
    pub(crate) engine: Engine,
    /// Who changes the kernels, where somebody may.
    pub(crate) supervised: Option<Supervised>,
    pub(crate) scheduler: Scheduler,
    pub(crate) template: Option<ChatTemplate>,
    /// The source of the template, for clients that render conversations themselves.
    pub(crate) template_source: Option<String>,
    /// What the template knows of tools, or the one that is for them.
    pub(crate) teaching: Teaching,
    /// What the template for conversations without tools knows of those that were called before.
    pub(crate) teaching_without_tools: Teaching,
    /// What compiles the grammars of requests, if anything does.
    pub(crate) grammars: Option<Arc<Grammars>>,
    /// The model's id in answers.
    pub(crate) model: String,
    /// All that requests can name.
    pub(crate) models: Models,
    /// When serving began, in seconds since 1970.
    pub(crate) created: u64,
    /// As the server was started; who may ask by now is in [`App::access`].
    pub(crate) options: ServerOptions,
    access: RwLock<Arc<Access>>,
    /// The certificate, where HTTPS is served.
    pub(crate) tls: Option<Tls>,
    /// What reads the configuration anew, where something does.
    pub(crate) reloader: Option<Reloader>,
    /// Held by who does.
    pub(crate) reloading: Mutex<()>,
    pub(crate) metrics: Metrics,
    pub(crate) helpers: Helpers,
    /// One for each helper thread that clients may have.
    places: Arc<Semaphore>,
    bodies: Bodies,
    admin_bodies: Bodies,
    pub(crate) draining: AtomicBool,
}

impl App {
    pub(crate) fn new(
        served: Served,
        options: ServerOptions,
        tls: Option<Tls>,
    ) -> Result<App, ServerError> {
        let Served {
            engine,
            adapter,
            adapters,
            encoders,
            supervisor,
            renderer,
            grammars,
            reloader,
        } = served;
        let ids = options.model_ids(engine.model());
        let model = ids.first().cloned().unwrap_or_default();
        let (template_source, tool_source) = options.template_sources(engine.model())?;
        let template = options.chat_template(engine.model(), &renderer)?;
        let source = template_source.as_deref().unwrap_or_default();
        let tokenizer = engine.model().tokenizer();
        let teaching = Teaching::new(tool_source.as_deref().unwrap_or(source), tokenizer);
        let teaching_without_tools = Teaching::new(source, tokenizer);
        let Limits { parallel: running, queue, prompt_chunk: chunk, max_bodies, .. } =
            options.limits;
        let config = SchedulerConfig { running, queue, chunk };
        Ok(App {
            scheduler: Scheduler::start(engine.clone(), config)?,
            template,
            template_source,
            teaching,
            teaching_without_tools,
            grammars: Grammars::new(grammars, options.limits.grammar_memory),
            engine,
            supervised: supervisor.map(Supervised::new),
            models: Models::new(ids, adapter, adapters, encoders)?,
            model,
            created: now(),
            access: RwLock::new(Arc::new(Access::of(&options))),
            options,
            tls,
            reloader,
            reloading: Mutex::new(()),
            metrics: Metrics::default(),
            helpers: Helpers::default(),
            places: Arc::new(Semaphore::new(CLIENT_HELPERS)),
            bodies: Bodies::new(max_bodies),
            // Few use it, and have to be able to send a pack.
            admin_bodies: Bodies::new(admin::pack_bytes()),
            draining: AtomicBool::new(false),
        })
    }

    /// The keys of this moment.
    pub(crate) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.access.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_access(&self, access: Access) {
        *self.access.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(access);
    }

    /// The bodies of a listener's requests.
    pub(crate) fn bodies(&self, listener: Listener) -> &Bodies {
        match listener {
            Listener::Client => &self.bodies,
            Listener::Admin => &self.admin_bodies,
        }
    }

    /// Runs what takes longer than a glance on one of the helper threads that clients may have.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = Arc::clone(&self.places).acquire_owned().await;
        let place = place.map_err(|closed| ApiError::internal(closed.to_string()))?;
        aside(move || {
            let _place = place;
            work()
        })
        .await
    }

    /// Whether the server takes no more requests.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).as_ref().map_or(0, Duration::as_secs)
}

/// Runs what takes longer than a glance on a helper thread. For what clients ask there is [`App::aside`].
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|error| Err(ApiError::internal(error.to_string())))
}

/// The addresses that a listener has.
pub(crate) fn routes(app: &Arc<App>, listener: Listener) -> Router {
    let administration = match (listener, &app.supervised) {
        (Listener::Admin, Some(kernels)) => admin::routes(Arc::clone(app), kernels.clone()),
        _ => Router::new(),
    };
    Router::new()
        .route("/health", get(health::health))
        .route("/ready", get(health::ready))
        .route("/metrics", get(metrics::metrics))
        .route("/status", get(status::status))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/v1/chat/completions", post(chat::completions))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", post(responses::responses))
        .route(anthropic::PATH, post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/embeddings", post(embeddings::embeddings))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::info))
        .merge(dashboard::routes())
        .with_state(Arc::clone(app))
        .merge(administration)
        .fallback(|request: Request| async move { ApiError::not_found(request.uri().path()) })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(middleware::from_fn_with_state((Arc::clone(app), listener), http::around))
}
