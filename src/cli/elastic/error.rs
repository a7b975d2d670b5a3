//! `RendezvousError`: why this node cannot take part in a job of several nodes.

use crate::model::Endpoint;
use crate::model::plain_text::escape;
use crate::run::output::log_files::plain;
use std::io;

/// Why this node did not find the others, or cannot work with them. One line each.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// No route leads to the rendezvous backend.
    #[error("{option} {at}: this machine has no route there ({}); correct it, or set {host_option}", plain(.source))]
    NoRoute {
        /// The option that names the backend.
        option: &'static str,
        /// The backend.
        at: Endpoint,
        /// Why.
        source: io::Error,
        /// The option for this node's address.
        host_option: &'static str,
    },
    /// The kernel gives no random bytes for the job's secret.
    #[error("cannot draw a secret for this job: {}; set RLAUNCH_JOB_SECRET", plain(.0))]
    NoSecret(io::Error),
    /// The option for etcd has no endpoint.
    #[error("{option}: no etcd endpoint is given; give HOST:PORT")]
    NoEtcdEndpoint {
        /// The option.
        option: &'static str,
    },
    /// This build has no etcd client.
    #[error("{option}: this build of rlaunch has no etcd client (Cargo's feature `etcd`)")]
    EtcdNotBuilt {
        /// The option.
        option: &'static str,
    },
    /// The backend's client could not be started.
    #[error("{at}: {}", plain(.source))]
    Client {
        /// The backend.
        at: String,
        /// Why.
        source: io::Error,
    },
    /// The embedded master could not be started.
    #[error("cannot start the embedded master: {}", plain(.0))]
    MasterServer(#[source] io::Error),
    /// An address cannot be listened on.
    #[error("{option} {address}: cannot listen there: {}; {}", plain(.source), listen_hint(.source))]
    Listen {
        /// The option.
        option: &'static str,
        /// Its value.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Another node's entry has no usable endpoints.
    #[error(
        "node {host} ({address}) sent an unreadable list of endpoints; run the same version of rlaunch on all nodes"
    )]
    BadEndpoints {
        /// That node's name.
        host: String,
        /// Its address.
        address: String,
    },
    /// Some nodes of the job have parameter servers, and others have none.
    #[error("node {host} ({address}) was started {with} parameter servers, this node {own}; start all nodes alike")]
    OtherMode {
        /// That node's name.
        host: String,
        /// Its address.
        address: String,
        /// `with` or `without`.
        with: &'static str,
        /// The same of this node.
        own: &'static str,
    },
    /// The first node's entry does not say where its store listens.
    #[error("node 0 did not send the address of its store; run the same version of rlaunch on all nodes")]
    NoStoreAddress,
    /// Something other than a master listens at its address.
    #[error(
        "{option} {at}: something else listens there ({reply}); give {option} the address of {expected}, or a free port"
    )]
    ForeignService {
        /// The option.
        option: &'static str,
        /// Its value.
        at: Endpoint,
        /// The beginning of its reply.
        reply: String,
        /// What may listen there.
        expected: &'static str,
    },
    /// No master came up in time.
    #[error(
        "{option} {at}: no master within {seconds:.0} s: {why}; start the node that has this address, or raise {timeout_option}"
    )]
    NoMaster {
        /// The option.
        option: &'static str,
        /// Its value.
        at: Endpoint,
        /// Time waited.
        seconds: f64,
        /// The last failure.
        why: String,
        /// The option for the time.
        timeout_option: &'static str,
    },
    /// The master is Paddle's, and this front end cannot use it.
    #[error("{at}: Paddle's own launcher serves there, which only python -m rlaunch can join")]
    PaddleMaster {
        /// The master.
        at: Endpoint,
    },
    /// The master is Paddle's, which orders no nodes with parameter servers by address.
    #[error(
        "--sort_ip: the master at {at} is Paddle's, which does not order nodes with parameter servers by address; leave it out"
    )]
    PaddleMasterSortsNoServers {
        /// The master.
        at: Endpoint,
    },
    /// The master is Paddle's, which does not compare what has to be the same on all nodes.
    #[error(
        "--require_same: the master at {at} is Paddle's, which compares nothing; start that node with rlaunch, or leave it out"
    )]
    PaddleMasterComparesNothing {
        /// The master.
        at: Endpoint,
    },
    /// The master is Paddle's, and this job has a secret.
    #[error(
        "{at}: what serves there speaks Paddle's protocol, which cannot prove the job's secret; start that node with rlaunch, \
         or unset RLAUNCH_JOB_SECRET on all nodes"
    )]
    PaddleMasterWithoutSecret {
        /// The master.
        at: Endpoint,
    },
    /// The rendezvous at Paddle's master failed.
    #[error("the master at {at}: {}", plain(.source))]
    PaddleRendezvous {
        /// The master.
        at: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// A node of Paddle's own launcher sent something else than Paddle's JSON.
    #[error("{key}: unreadable entry of a node: {payload:.200}")]
    BadPaddleEntry {
        /// Its key.
        key: String,
        /// Its value.
        payload: String,
    },
    /// Two launchers have the same `--node-rank`.
    #[error("two launchers have --node-rank {node}; give each its own --node-rank")]
    DuplicateNode {
        /// The number.
        node: usize,
    },
    /// Another launcher is this node.
    #[error(
        "--node-rank {node}: another launcher is node {node} of this job, or the job runs already; \
         give each its own --node-rank"
    )]
    NodeTaken {
        /// The number.
        node: usize,
    },
    /// Nodes did not come in time; node 0 knows the nodes that are here.
    #[error(
        "{missing} did not come within {seconds} s: {here} waited; start it with the same --nnodes, --master-addr, \
         --master-port and --rdzv-id, or give it more time by --rdzv-conf timeout=SECONDS"
    )]
    NodesMissing {
        /// Their numbers.
        missing: String,
        /// The numbers of the others.
        here: String,
        /// Time waited.
        seconds: u64,
    },
    /// The same on another node.
    #[error("{missing} did not come within {seconds} s")]
    PeersMissing {
        /// Their numbers.
        missing: String,
        /// Time waited.
        seconds: u64,
    },
    /// Node 0 gave up.
    #[error("node 0 has given up: {}", escape(.why))]
    CalledOff {
        /// Its reason.
        why: String,
    },
    /// Node 0's store did not answer in time.
    #[error("{at}: not reached within {seconds} s ({})", plain(.source))]
    StoreTimeout {
        /// The store.
        at: String,
        /// Time waited.
        seconds: u64,
        /// Why.
        source: io::Error,
    },
    /// Node 0's store failed.
    #[error("{at}: {}", plain(.source))]
    Store {
        /// The store.
        at: String,
        /// Why.
        source: io::Error,
    },
}

/// What to do about an address that cannot be listened on.
fn listen_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => {
            "only root may listen on ports below net.ipv4.ip_unprivileged_port_start (1024): choose another port"
        }
        _ => "give an address of this machine",
    }
}

impl RendezvousError {
    /// Whether this machine or another node's settings are at fault, rather than a node that did not come.
    pub fn is_preflight(&self) -> bool {
        matches!(
            self,
            Self::NoRoute { .. }
                | Self::NoSecret(_)
                | Self::NoEtcdEndpoint { .. }
                | Self::EtcdNotBuilt { .. }
                | Self::Client { .. }
                | Self::MasterServer(_)
                | Self::Listen { .. }
                | Self::BadEndpoints { .. }
                | Self::NoStoreAddress
        )
    }
}
