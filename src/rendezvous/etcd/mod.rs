//! Rendezvous at etcd: version 3, by its JSON gateway (etcd 3.4 and later).
//!
//! Below `/{prefix}/{job}/`:
//!
//! | key | value | lease |
//! |---|---|---|
//! | `nodes/{id}` | a node's record; empty: the node leaves | its node's |
//! | `board/leader` | the id of the node that coordinates; the key's create revision is the *term* | its node's |
//! | `board/state` | the job's state, with its coordinator's term and the place of the members' list | the job's |
//! | `members/{version}/{n}` | the members' list, in pieces | the job's |
//! | `board/questions/{id}` | a question of one node to all others | that node's |
//! | `answers/{id}/{node}` | a node's answer | that of the node that asks |
//! | `sent/{node}/{id}` | what a node sends to another one alone | that of the node that sends |
//!
//! A node joins by one transaction, which puts its record, puts the leader's key if there is none, and reads the job's state. All
//! nodes watch `board/`; the leader watches `nodes/` as well, and the first node of a round `sent/` of its own. The leader's
//! writes are fenced by its term and by the revision of the last state. The last node that leaves deletes everything; if none
//! could, the job's lease does.
//!
//! `backend.rs` joins and `session_thread.rs` talks to etcd. `cli/elastic/wait_for_round.rs` waits for the round that this node
//! is a member of; the leader forms it by the rules of `protocol/coordinator.rs`.

mod backend;
mod config;
mod contact;
mod event;
#[cfg_attr(fuzzing, allow(missing_docs))]
mod gateway;
mod job_state;
mod leader;
mod lease_keepalive;
mod questions;
mod retry;
mod session;
mod session_thread;

pub use backend::{EtcdBackend, join, leave_for};
pub use config::{EtcdConfig, EtcdTls};
#[cfg(fuzzing)]
pub use gateway::codec;
