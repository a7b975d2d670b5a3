//! Requests to etcd's JSON gateway. The endpoint that answered last is asked first, and others if it fails.

use super::codec;
use super::tls::{TlsFiles, permanent_reason};
use super::wire::{WireConnector, WireHandle};
use crate::net::traffic::Traffic;
use crate::rendezvous::etcd::config::EtcdConfig;
use crate::sys::clock;
use crate::sys::random;
use serde_json::{Value, json};
use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use ureq::http::{Response, Uri};
use ureq::unversioned::resolver::DefaultResolver;
use ureq::{Agent, Body};

/// Longer responses are not etcd's: it takes 1.5 MiB in one request, and lists come in pieces.
const MAX_RESPONSE: u64 = 64 << 20;
/// The shortest time for one endpoint, while so much is left.
const MIN_SHARE: Duration = Duration::from_millis(200);

/// Why a request has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EtcdError {
    /// No endpoint has answered; a later attempt may succeed.
    #[error("{0}")]
    Unreachable(String),
    /// Etcd has answered with an error.
    #[error("{message}")]
    Status {
        /// The status code of gRPC.
        code: i64,
        /// Etcd's message.
        message: String,
    },
    /// An endpoint does not accept this node's certificate, user or requests, or this node not the endpoint. Only inside the
    /// client: to its callers it is `Refused` before the node has joined and `Unreachable` afterwards.
    #[error("{0}")]
    Denied(String),
    /// Every attempt would fail; the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// Another job has this node's place.
    #[error("{0}")]
    Superseded(String),
    /// This backend is closed.
    #[error("the connection with etcd is closed")]
    Closed,
}

/// gRPC's status code of something that does not exist, as a lease that has expired.
pub const NOT_FOUND: i64 = 5;

/// The etcd cluster of one backend, as all its threads see it.
pub struct EtcdClient {
    endpoints: Vec<String>,
    tls: Option<Arc<TlsFiles>>,
    user: Option<(String, String)>,
    pub timeout: Duration,
    /// When the node reports at the latest that contact is lost, in ms: no request may delay that.
    contact_until_ms: AtomicU64,
    /// When the node has left, whether etcd answers or not, in ms.
    left_by_ms: AtomicU64,
    /// The index of the endpoint that is asked first.
    preferred: AtomicUsize,
    /// Whether etcd has ever answered.
    met: AtomicBool,
    /// Whether this node has joined its job.
    has_joined: AtomicBool,
    token: Mutex<Option<String>>,
    pub traffic: Traffic,
    streams: Mutex<Vec<Weak<WireHandle>>>,
}

impl EtcdClient {
    pub fn new(config: &EtcdConfig) -> io::Result<Arc<Self>> {
        let wants_tls = config.tls.is_some();
        let endpoints =
            config.endpoints.iter().map(|text| parse_endpoint(text, wants_tls)).collect::<io::Result<Vec<_>>>()?;
        if endpoints.is_empty() {
            return Err(invalid("no endpoint is given"));
        }
        let needs_tls = endpoints.iter().any(|one| one.starts_with("https:"));
        let first = random::rng().usize(..endpoints.len());
        Ok(Arc::new(Self {
            endpoints,
            tls: if needs_tls { Some(Arc::new(TlsFiles::read(config.tls.as_ref())?)) } else { None },
            user: config.user.clone(),
            timeout: config.timeout.min(config.lease / 3),
            contact_until_ms: AtomicU64::new(0),
            left_by_ms: AtomicU64::new(u64::MAX),
            // Random, so that not all nodes ask the same member.
            preferred: AtomicUsize::new(first),
            met: AtomicBool::new(false),
            has_joined: AtomicBool::new(false),
            token: Mutex::new(None),
            traffic: Traffic::default(),
            streams: Mutex::new(Vec::new()),
        }))
    }

    pub fn now(&self) -> Duration {
        clock::now()
    }

    /// Contact holds until then: open requests end by then.
    pub fn hold_until(&self, until: Duration) {
        self.contact_until_ms.store(in_ms(until), Ordering::Relaxed);
    }

    /// The node leaves, and has left by then.
    pub fn leave_by(&self, until: Duration) {
        self.left_by_ms.store(in_ms(until), Ordering::Relaxed);
    }

    /// The deadline of a request that is made now. A node that leaves does not have to report lost contact.
    pub fn deadline(&self) -> Duration {
        match self.left_by_ms.load(Ordering::Relaxed) {
            u64::MAX => Duration::from_millis(self.contact_until_ms.load(Ordering::Relaxed)),
            _ => self.now() + self.timeout,
        }
    }

    /// The node has joined: etcd accepted it, so a certificate or user that it does not accept later may be mended.
    pub fn note_joined(&self) {
        self.has_joined.store(true, Ordering::Relaxed);
    }

    fn left_by(&self) -> Duration {
        Duration::from_millis(self.left_by_ms.load(Ordering::Relaxed))
    }

    fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed)
    }

    /// That endpoint has answered: streams from others reconnect to it.
    fn prefer(&self, at: usize) {
        self.met.store(true, Ordering::Relaxed);
        if self.preferred.swap(at, Ordering::Relaxed) == at {
            return;
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.retain(|line| line.strong_count() > 0);
        for line in streams.iter().filter_map(Weak::upgrade) {
            if line.endpoint.load(Ordering::Relaxed) != at {
                line.disconnect();
            }
        }
    }
}

/// An attempt at one endpoint.
#[derive(Clone, Copy)]
struct EndpointAttempt {
    at: usize,
    share: Duration,
    until: Duration,
}

/// One thread's connection with the cluster.
pub struct EtcdCaller {
    pub client: Arc<EtcdClient>,
    pub wire: Arc<WireHandle>,
    /// The next request gets another token first. Other threads keep theirs: etcd renews a lease whatever the token.
    pub renews_token: AtomicBool,
    agent: Agent,
}

impl EtcdCaller {
    /// For requests.
    pub fn new(client: &Arc<EtcdClient>) -> Self {
        Self::with(client)
    }

    /// For a stream.
    pub fn streaming(client: &Arc<EtcdClient>) -> Self {
        let caller = Self::with(client);
        client.streams.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&caller.wire));
        caller
    }

    fn with(client: &Arc<EtcdClient>) -> Self {
        let wire = WireHandle::new(client.traffic.clone(), client.timeout);
        let config = Agent::config_builder().proxy(None).http_status_as_error(false).max_redirects(0);
        let config = config.max_redirects_will_error(false).user_agent("rlaunch").accept("");
        let config = config.timeout_connect(Some(client.timeout)).timeout_resolve(Some(client.timeout));
        let config =
            config.max_idle_connections(1).max_idle_connections_per_host(1).max_idle_age(Duration::MAX).build();
        let wires = WireConnector { wire: Arc::clone(&wire), tls: client.tls.clone() };
        let agent = Agent::with_parts(config, wires, DefaultResolver::default());
        Self { client: Arc::clone(client), wire, renews_token: AtomicBool::new(false), agent }
    }

    /// Makes a request, for as long as contact holds, or until the node has left.
    pub fn call(&self, path: &str, request_body: &Value) -> Result<Value, EtcdError> {
        self.call_until(self.client.deadline(), path, request_body)
    }

    /// Makes a request that has to be answered by then.
    pub fn call_until(&self, until: Duration, path: &str, request_body: &Value) -> Result<Value, EtcdError> {
        self.try_endpoints(until, |to| {
            let response = self.post(to, path, request_body)?;
            self.response(to, response)
        })
    }

    /// Opens a stream.
    pub fn stream(&self, path: &str, request_body: &Value) -> Result<Response<Body>, EtcdError> {
        self.wire.streams.store(false, Ordering::Relaxed);
        // No other thread waits for it.
        self.try_endpoints(Duration::MAX, |to| {
            self.wire.endpoint.store(to.at, Ordering::Relaxed);
            let response = self.send(to, path, request_body, None)?;
            if response.status().is_success() { Ok(response) } else { Err(self.status_error(to, response)) }
        })
    }

    /// The result of the first endpoint that answers. The remaining time is shared among the endpoints that are left.
    fn try_endpoints<T>(
        &self,
        until: Duration,
        ask: impl Fn(EndpointAttempt) -> Result<T, EtcdError>,
    ) -> Result<T, EtcdError> {
        let (count, first) = (self.client.endpoints.len(), self.client.preferred());
        let mut last = "no time is left to ask it".to_owned();
        let (mut denied, mut asked) = (None, 0);
        for (step, waiting) in (1..=u32::try_from(count).unwrap_or(u32::MAX)).rev().enumerate() {
            let (at, now) = ((first + step) % count, self.client.now());
            let left = until.min(self.client.left_by()).saturating_sub(now);
            if left.is_zero() {
                // The next request begins with the endpoints that this one did not ask.
                self.client.preferred.store(at, Ordering::Relaxed);
                break;
            }
            asked += 1;
            let share = (left / waiting).max(MIN_SHARE).min(left).min(self.client.timeout);
            match self.with_token(EndpointAttempt { at, share, until: now + share }, &ask) {
                Err(_) if self.wire.is_closed() => return Err(EtcdError::Closed),
                Err(EtcdError::Unreachable(why)) => last = why,
                Err(EtcdError::Denied(why)) => denied = Some(why),
                Ok(response) => {
                    self.client.prefer(at);
                    return Ok(response);
                }
                Err(other) => return Err(other),
            }
        }
        match denied {
            Some(why) if asked == count && !self.client.has_joined.load(Ordering::Relaxed) => {
                Err(EtcdError::Refused(why))
            }
            denied => Err(EtcdError::Unreachable(denied.unwrap_or(last))),
        }
    }

    /// Adds a token if there is a user; gets another one if etcd does not accept it any more.
    fn with_token<T>(
        &self,
        to: EndpointAttempt,
        ask: impl Fn(EndpointAttempt) -> Result<T, EtcdError>,
    ) -> Result<T, EtcdError> {
        if self.token().is_none() || self.renews_token.swap(false, Ordering::Relaxed) {
            self.authenticate(to)?;
        }
        match ask(to) {
            Err(EtcdError::Status { message, .. }) if is_stale(&message) => {
                self.authenticate(to)?;
                ask(to).map_err(|error| self.classify(to.at, error))
            }
            other => other.map_err(|error| self.classify(to.at, error)),
        }
    }

    fn token(&self) -> Option<String> {
        self.client.token.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn authenticate(&self, to: EndpointAttempt) -> Result<(), EtcdError> {
        let Some((name, password)) = &self.client.user else { return Ok(()) };
        let request_body = json!({ "name": name, "password": password });
        let response = self.post(to, "/v3/auth/authenticate", &request_body)?;
        let token = match self.response(to, response) {
            Ok(response) => response["token"].as_str().map(str::to_owned),
            // Etcd without authentication accepts every client.
            Err(EtcdError::Status { message, .. }) if message.contains("authentication is not enabled") => {
                let endpoint = &self.client.endpoints[to.at];
                tracing::warn!("etcd at {endpoint} checks no users: every client that reaches it can join this job");
                Some(String::new())
            }
            Err(error) => return Err(self.classify(to.at, error)),
        };
        *self.client.token.lock().unwrap_or_else(PoisonError::into_inner) = token;
        Ok(())
    }

    /// Makes a request at one endpoint.
    fn post(&self, to: EndpointAttempt, path: &str, request_body: &Value) -> Result<Response<Body>, EtcdError> {
        self.send(to, path, request_body, Some(to.until))
    }

    /// Makes a request; the whole response has to arrive by then. Repeats it if a kept connection turns out to be closed.
    fn send(
        &self,
        to: EndpointAttempt,
        path: &str,
        request_body: &Value,
        until: Option<Duration>,
    ) -> Result<Response<Body>, EtcdError> {
        let post = || {
            let url = format!("{}{path}", self.client.endpoints[to.at]);
            // Makes a member without a leader refuse a watch, which otherwise would receive nothing.
            let mut request = self.agent.post(url).header("Content-Type", "application/json");
            request = request.header("Grpc-Metadata-hasleader", "true");
            if let Some(token) = self.token().filter(|token| !token.is_empty()) {
                request = request.header("Authorization", token);
            }
            let limit = until.map(|until| until.saturating_sub(self.client.now()).max(Duration::from_millis(1)));
            request.config().timeout_global(limit).build().send(request_body.to_string())
        };
        let response = match post() {
            Err(ureq::Error::Io(error)) if has_closed(&error) && !self.wire.is_closed() => post(),
            other => other,
        };
        response.map_err(|error| self.transport_error(to, &error))
    }

    fn response(&self, to: EndpointAttempt, mut response: Response<Body>) -> Result<Value, EtcdError> {
        if !response.status().is_success() {
            return Err(self.status_error(to, response));
        }
        let text = response.body_mut().with_config().limit(MAX_RESPONSE).read_to_vec();
        let text = text.map_err(|error| self.transport_error(to, &error))?;
        let response = serde_json::from_slice::<Value>(&text).ok().filter(Value::is_object);
        response.ok_or_else(|| self.not_etcd(to, "its answer is not JSON"))
    }

    /// The error of a response with an error status.
    fn status_error(&self, to: EndpointAttempt, mut response: Response<Body>) -> EtcdError {
        let status = response.status();
        let text = response.body_mut().with_config().limit(1 << 16).read_to_vec().unwrap_or_default();
        let body = serde_json::from_slice::<Value>(&text).ok();
        let error = body.as_ref().and_then(|value| Some((value["code"].as_i64()?, value["error"].as_str()?)));
        match error {
            Some((_, "Not Found")) | None if status.is_client_error() => {
                self.not_etcd(to, &format!("it answers with HTTP status {}", status.as_u16()))
            }
            Some((code, message)) => EtcdError::Status { code, message: message.to_owned() },
            None => {
                EtcdError::Unreachable(format!("{}: HTTP status {}", self.client.endpoints[to.at], status.as_u16()))
            }
        }
    }

    /// Sorts etcd's errors into those that pass, those that do not, and others.
    fn classify(&self, at: usize, error: EtcdError) -> EtcdError {
        let EtcdError::Status { code, message } = error else { return error };
        let endpoint = &self.client.endpoints[at];
        let says = |way_out: &str| format!("etcd at {endpoint} says: {message}; {way_out}");
        match code {
            _ if message.contains("user name is empty") => EtcdError::Denied(says("name a user, and the password")),
            _ if message.contains("request is too large") || message.contains("message larger than max") => {
                EtcdError::Refused(says("start etcd with a larger --max-request-bytes"))
            }
            7 => EtcdError::Denied(says("this user needs a role that may read and write this prefix")),
            _ if code == 16 || message.contains("authentication failed") => {
                EtcdError::Denied(says("check the user's name and the password"))
            }
            // Too slow, overloaded, partitioned, without a leader.
            1 | 4 | 8 | 13 | 14 => EtcdError::Unreachable(format!("{endpoint}: {message}")),
            _ => EtcdError::Status { code, message },
        }
    }

    fn transport_error(&self, to: EndpointAttempt, error: &ureq::Error) -> EtcdError {
        let endpoint = &self.client.endpoints[to.at];
        if self.wire.is_closed() {
            return EtcdError::Closed;
        }
        if let ureq::Error::Io(error) = error
            && let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
            && let Some(reason) = permanent_reason(tls)
        {
            return EtcdError::Denied(format!("etcd at {endpoint}: {reason}"));
        }
        let why = match error {
            ureq::Error::Timeout(_) => {
                format!("no answer within {} s", (to.share.as_secs_f64() * 10.0).round() / 10.0)
            }
            ureq::Error::Protocol(_) | ureq::Error::Http(_) => return self.not_etcd(to, "it does not speak HTTP"),
            ureq::Error::HostNotFound => "no such host".to_owned(),
            ureq::Error::Io(error) if has_closed(error) && !self.client.met.load(Ordering::Relaxed) => {
                let (wants, scheme) = if endpoint.starts_with("http:") { ("", "https") } else { (" no", "http") };
                format!("it closed the connection ({error}); if it wants{wants} TLS, write {scheme}://")
            }
            ureq::Error::Io(error) => error.to_string(),
            other => other.to_string(),
        };
        EtcdError::Unreachable(format!("{endpoint}: {why}"))
    }

    /// The error for a server that is not etcd, or a very old one. If etcd has answered there before, a proxy may have answered now.
    fn not_etcd(&self, to: EndpointAttempt, sign: &str) -> EtcdError {
        let endpoint = &self.client.endpoints[to.at];
        if self.client.met.load(Ordering::Relaxed) {
            return EtcdError::Unreachable(format!("{endpoint}: {sign}"));
        }
        let get = |path: &str| {
            let request = self.agent.get(format!("{endpoint}{path}")).config();
            request.timeout_global(Some(self.client.timeout)).build().call().ok()
        };
        let version = get("/version").and_then(|mut response| {
            let text = response.body_mut().with_config().limit(1 << 16).read_to_string().ok()?;
            Some(serde_json::from_str::<Value>(&text).ok()?["etcdserver"].as_str()?.to_owned())
        });
        let is_v2 = || get("/v2/keys/").is_some_and(|response| response.status().is_success());
        let is_v3 = |version: &str| version.split('.').map_while(|part| part.parse::<u32>().ok()).ge([3, 4]);
        EtcdError::Denied(match version {
            Some(version) if is_v3(&version) => format!(
                "etcd {version} at {endpoint} does not serve its JSON gateway, which rlaunch needs: set enable-grpc-gateway: true in \
                 its file, or --enable-grpc-gateway"
            ),
            Some(version) => format!(
                "etcd {version} at {endpoint} serves etcd's v2 API only, or an early v3; rlaunch speaks v3, from etcd 3.4 on"
            ),
            None if is_v2() => format!("{endpoint} serves etcd's v2 API only; rlaunch speaks v3, from etcd 3.4 on"),
            None => format!("{endpoint} is not etcd: {sign}; rlaunch speaks etcd's v3 API, from etcd 3.4 on"),
        })
    }

    /// The keys with this prefix, and the revision at which they were read.
    pub fn range(&self, prefix: &str) -> Result<(Vec<codec::KeyValue>, i64), EtcdError> {
        let response = self.call("/v3/kv/range", &codec::range(prefix))?;
        Ok((codec::key_values(&response), codec::revision(&response)))
    }
}

fn in_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn is_stale(message: &str) -> bool {
    message.contains("invalid auth token") || message.contains("revision of auth store is old")
}

/// Whether the server has closed the connection.
fn has_closed(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    let tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    !tls && matches!(
        error.kind(),
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::UnexpectedEof | Kind::ConnectionAborted
    )
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("etcd: {why}"))
}

/// Parses an endpoint into a URL without a path.
fn parse_endpoint(text: &str, wants_tls: bool) -> io::Result<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("etcd", text));
    let scheme = match (scheme, wants_tls) {
        ("etcd", false) | ("http", false) => "http",
        ("etcd", true) | ("https", _) => "https",
        ("http", true) => return Err(invalid(&format!("{text}: files for TLS are given; write https://"))),
        _ => return Err(invalid(&format!("{text}: it begins with etcd://, http:// or https://, or with the host"))),
    };
    let unfit = |why: &dyn Error| invalid(&format!("{text}: {why}; it is host:port"));
    let uri: Uri = format!("{scheme}://{}", rest.trim_end_matches('/')).parse().map_err(|error| unfit(&error))?;
    let authority = uri.authority().filter(|one| !one.host().is_empty() && !one.as_str().contains('@'));
    match authority {
        Some(one) if uri.path().len() <= 1 && uri.query().is_none() => {
            Ok(format!("{scheme}://{}:{}", one.host(), one.port_u16().unwrap_or(2379)))
        }
        _ => Err(invalid(&format!("{text}: it is host:port, without a path or a user"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_hosts_with_or_without_a_scheme_and_a_port() {
        let fit = |text, tls| parse_endpoint(text, tls).map_err(|error| error.to_string());
        assert_eq!(fit("h:1", false).as_deref(), Ok("http://h:1"));
        assert_eq!(fit("etcd://h", true).as_deref(), Ok("https://h:2379"));
        assert_eq!(fit("https://[::1]:5/", false).as_deref(), Ok("https://[::1]:5"));
        for (text, tls) in
            [("http://h:1", true), ("ftp://h", false), ("", false), ("h:1/path", false), ("u@h:1", false)]
        {
            assert!(parse_endpoint(text, tls).is_err(), "{text}");
        }
    }
}
