//! Endpoints for ranks of frameworks other than PyTorch: those that this node offers, and those of all nodes of a round.

use crate::cli::common::error::CliError;
use crate::cli::elastic::endpoints;
use crate::model::Endpoint;
use crate::plan::devices::assign;
use crate::plan::env::frameworks::{ExtraFrameworks, PaddleEnv};
use crate::plan::torchrun::NodePosition;
use crate::probe::accelerators;
use crate::protocol::{NodeInfo, RoundMember};
use crate::run::prepare::ports;
use crate::spec::SpecError;
use crate::spec::frameworks::Framework;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::{TorchSpec, TorchrunBackend};
use crate::sys::io::ports::PortLease;
use crate::sys::random;
use std::path::Path;

/// The names of rank 0's endpoints in `NodeInfo::more`.
const PADDLE: &str = "paddle";
/// See `PADDLE`.
const JAX: &str = "jax";

/// Refuses other frameworks than PyTorch on several nodes of a static rendezvous, which exchange nothing but the numbers of their
/// ranks, as torchrun's do.
pub fn check(spec: &TorchSpec) -> Result<(), CliError> {
    let is_static = matches!(spec.rendezvous, TorchrunBackend::Static { .. }) && spec.nodes.1 > 1;
    if !is_static || spec.frameworks.iter().all(|framework| *framework == Framework::Torch) {
        return Ok(());
    }
    let hint = "give --rdzv-backend c10d and --rdzv-endpoint instead of the master's address, or leave it out";
    let why = "on several nodes of a static rendezvous only torch is possible";
    Err(CliError::Usage(SpecError::new("--frameworks", "", why, hint)))
}

/// The endpoints of this node's ranks, with the leases of their ports.
pub fn offer(
    spec: &TorchSpec,
    vars: &EnvVars,
    place: &NodePosition,
) -> Result<(ExtraFrameworks, Vec<PortLease>), CliError> {
    let host = if place.master.host == "localhost" { "127.0.0.1" } else { &place.master.host };
    let asked = |framework| spec.frameworks.contains(&framework);
    let (mut extra, mut leases) = (ExtraFrameworks::default(), Vec::new());
    let mut port = || -> Result<Endpoint, CliError> {
        let lease = ports::lease_any().map_err(CliError::Preflight)?;
        let endpoint = Endpoint::new(host, lease.port());
        leases.push(lease);
        Ok(endpoint)
    };
    if asked(Framework::Paddle) {
        let (kind, count) =
            assign::count_visible(vars, &accelerators::machine(Path::new("/"))).map_err(CliError::Usage)?;
        let endpoints = (0..place.world_size).map(|_| port()).collect::<Result<_, _>>()?;
        let pod = random::lowercase(6);
        extra.paddle = Some(PaddleEnv { endpoints, master: port()?, devices: (kind.to_owned(), count), pod });
    }
    if asked(Framework::Jax) {
        extra.jax = Some(port()?);
    }
    Ok((extra, leases))
}

/// Writes them into the record that other nodes receive.
pub fn write(offer: &ExtraFrameworks, node: &mut NodeInfo) {
    if let Some(paddle) = &offer.paddle {
        node.endpoints = paddle.endpoints.iter().map(Endpoint::to_string).collect();
        node.more.insert(PADDLE.into(), paddle.master.to_string());
    }
    if let Some(coordinator) = &offer.jax {
        node.more.insert(JAX.into(), coordinator.to_string());
    }
}

/// Combines the endpoints of all nodes of a round. The launchers of a job have the same frameworks.
pub fn combine(offer: &ExtraFrameworks, members: &[RoundMember]) -> Result<ExtraFrameworks, CliError> {
    let at_rank_0 = |name: &str| -> Result<Endpoint, CliError> {
        let first = members.first().ok_or_else(|| endpoints::unusable(&NodeInfo::default()))?;
        let text = first.info.more.get(name);
        text.and_then(|text| Endpoint::parse(text)).ok_or_else(|| endpoints::unusable(&first.info))
    };
    let paddle = match &offer.paddle {
        Some(own) => {
            let all: Vec<Vec<Endpoint>> = members.iter().map(endpoints::read_for_ranks).collect::<Result<_, _>>()?;
            Some(PaddleEnv { endpoints: all.concat().into(), master: at_rank_0(PADDLE)?, ..own.clone() })
        }
        None => None,
    };
    let jax = offer.jax.as_ref().map(|_| at_rank_0(JAX)).transpose()?;
    Ok(ExtraFrameworks { paddle, jax })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // A test fails by panicking.
    use super::*;

    fn of(host: &str, ports: &[u16]) -> ExtraFrameworks {
        let at = |port| Endpoint::new(host, port);
        ExtraFrameworks {
            paddle: Some(PaddleEnv {
                endpoints: ports.iter().map(|port| at(*port)).collect(),
                master: at(1),
                devices: ("cpu".into(), 0),
                pod: host.into(),
            }),
            jax: Some(at(2)),
        }
    }

    fn member(offer: &ExtraFrameworks, ranks: usize) -> RoundMember {
        let mut info = NodeInfo { ranks, ..NodeInfo::default() };
        write(offer, &mut info);
        RoundMember { id: "a".into(), info }
    }

    #[test]
    fn ranks_learn_the_endpoints_of_all_nodes_and_the_servers_of_rank_0() {
        let (first, second) = (of("a", &[10, 11]), of("b", &[20]));
        let members = [member(&first, 2), member(&second, 1)];
        let all = combine(&second, &members).unwrap();
        let paddle = all.paddle.unwrap();
        assert_eq!(Endpoint::join(&paddle.endpoints), "a:10,a:11,b:20");
        assert_eq!((paddle.master.to_string(), paddle.pod), ("a:1".into(), "b".into()));
        assert_eq!(all.jax.unwrap().to_string(), "a:2");
        assert_eq!(combine(&ExtraFrameworks::default(), &members).unwrap(), ExtraFrameworks::default());
    }

    #[test]
    fn a_node_without_an_endpoint_for_each_rank_is_an_error() {
        let own = of("a", &[10]);
        for members in [vec![member(&own, 1), member(&ExtraFrameworks::default(), 1)], vec![member(&own, 2)], vec![]] {
            assert!(combine(&own, &members).is_err(), "{members:?}");
        }
    }
}
