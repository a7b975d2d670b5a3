//! What the words of torchrun's `--nproc-per-node` stand for: what torch would count, without torch.

use super::machine::Machine;
use super::visible::{self, Device, List};
use crate::spec::SpecError;
use crate::spec::options::Vars;
use crate::spec::torchrun::Nproc;
use std::collections::BTreeSet;

/// Devices of one kind, asked for only where they count.
pub type Count<'a> = &'a dyn Fn() -> Result<usize, SpecError>;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const LEVEL_ZERO: &str = "ZE_AFFINITY_MASK";

/// How many ranks the value of `field` stands for here. `cpus`: those in the affinity mask.
pub fn count(asked: Nproc, field: &str, gpus: Count<'_>, xpus: Count<'_>, cpus: usize) -> Result<usize, SpecError> {
    let some = |count: usize, name: &str, why: &str| match count {
        0 => Err(SpecError::new(field, name, why, "give a number, or auto or cpu")),
        count => Ok(count),
    };
    match asked {
        Nproc::Count(number) => Ok(number),
        Nproc::Cpu => Ok(cpus.max(1)),
        Nproc::Gpu => some(gpus()?, "gpu", "Cuda is not available. The NVIDIA driver would show no GPU"),
        Nproc::Xpu => some(xpus()?, "xpu", "Xpu is not available. Level Zero would show no GPU of Intel's"),
        Nproc::Auto => match gpus()? {
            0 => match xpus()? {
                0 => Ok(cpus.max(1)),
                xpus => Ok(xpus),
            },
            gpus => Ok(gpus),
        },
    }
}

/// The driver's numbers of the GPUs that a process started now would see, in its order. A list that the driver would
/// misread is refused; without a driver there is nothing that reads it.
///
/// Without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA's order begins with the fastest GPU, and is the driver's where all are alike.
pub fn cuda(vars: &Vars, machine: &Machine) -> Result<Vec<u32>, SpecError> {
    let list = vars.get(CUDA).filter(|_| !machine.gpus.is_empty());
    let Some(list) = list else { return Ok((0..machine.gpus.len() as u32).collect()) };
    match visible::of_cuda(CUDA, list)? {
        // CUDA does not know the word.
        List::All => Ok(Vec::new()),
        List::These(devices) => {
            // Of MIG devices a process is shown the first, and of others those before one that is not there.
            let most = if matches!(devices[..], [Device::Mig(_), ..]) { 1 } else { devices.len() };
            Ok(devices.iter().take(most).map_while(|device| machine.number(device)).collect())
        }
    }
}

/// The places of those of `count` Intel GPUs that ZE_AFFINITY_MASK leaves, in the machine's order: a mask sorts nothing.
/// Tiles (`0.1`) are parts of their GPU (Level Zero Specification, "Affinity Mask").
pub fn level_zero(vars: &Vars, count: usize) -> Result<Vec<usize>, SpecError> {
    let mask = vars.get(LEVEL_ZERO).filter(|mask| !mask.trim().is_empty() && count > 0);
    let Some(mask) = mask else { return Ok((0..count).collect()) };
    let mut left = BTreeSet::new();
    for element in mask.split(',') {
        let mut numbers = element.trim().split('.').map(|part| part.parse::<u32>().ok());
        let gpu = numbers.next().flatten();
        let Some(gpu) = gpu.filter(|_| numbers.all(|number| number.is_some())) else {
            let why = format!("'{}' is no device", crate::spec::shown(element));
            return Err(SpecError::new(
                LEVEL_ZERO,
                mask,
                why,
                "give numbers of GPUs, such as 0,1, or of their tiles, 0.1",
            ));
        };
        left.extend(Some(gpu as usize).filter(|gpu| *gpu < count));
    }
    Ok(left.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::machine::Gpu;

    fn vars(name: &str, value: &str) -> Vars {
        [(name.to_owned(), value.to_owned())].into()
    }

    fn counted(asked: Nproc, gpus: usize, xpus: usize) -> Result<usize, String> {
        count(asked, "--nproc-per-node", &|| Ok(gpus), &|| Ok(xpus), 6).map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_counted() {
        for (asked, counts, found) in [
            (Nproc::Auto, (4, 2), 4),
            (Nproc::Auto, (0, 2), 2),
            (Nproc::Auto, (0, 0), 6),
            (Nproc::Cpu, (4, 2), 6),
            (Nproc::Gpu, (4, 2), 4),
            (Nproc::Xpu, (4, 2), 2),
            (Nproc::Count(3), (4, 2), 3),
        ] {
            assert_eq!(counted(asked, counts.0, counts.1), Ok(found), "{asked:?} {counts:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_said_in_torchs_words() {
        for (asked, words) in [
            (Nproc::Gpu, "--nproc-per-node gpu: Cuda is not available. "),
            (Nproc::Xpu, "--nproc-per-node xpu: Xpu is not available. "),
        ] {
            let error = counted(asked, 0, 0).unwrap_err();
            assert!(error.starts_with(words), "{error}");
        }
    }

    #[test]
    fn nobody_is_asked_for_what_does_not_count() {
        let never: Count<'_> = &|| Err(SpecError::new("asked", "", "", ""));
        let one: Count<'_> = &|| Ok(1usize);
        let none: Count<'_> = &|| Ok(0usize);
        for (nproc, gpus, xpus) in [
            (Nproc::Cpu, never, never),
            (Nproc::Count(1), never, never),
            (Nproc::Auto, one, never),
            (Nproc::Xpu, never, one),
        ] {
            assert!(count(nproc, "", gpus, xpus, 1).is_ok(), "{nproc:?}");
        }
        assert!(count(Nproc::Auto, "", none, never, 1).is_err(), "an error is not taken for none");
    }

    #[test]
    fn cuda_shows_what_its_list_leaves() {
        let gpu = |i: usize| Gpu { uuid: format!("GPU-{i}{i}{i}{i}aaaa-0000"), migs: Vec::new() };
        let mut machine = Machine { gpus: (0..4).map(gpu).collect(), ..Machine::default() };
        machine.gpus[3].migs = vec!["MIG-aa-01".into(), "MIG-bb-02".into()];
        for (list, numbers) in [
            ("2,0", vec![2, 0]),
            ("", vec![]),
            ("1,9,0", vec![1]),
            ("GPU-3333,GPU-1", vec![3, 1]),
            ("GPU-7,GPU-1", vec![]),
            ("MIG-bb,MIG-aa", vec![3]),
            ("all", vec![]),
            ("1,-1,2", vec![1]),
        ] {
            assert_eq!(cuda(&vars(CUDA, list), &machine), Ok(numbers), "{list}");
        }
        assert_eq!(cuda(&Vars::new(), &machine), Ok(vec![0, 1, 2, 3]));
        assert!(cuda(&vars(CUDA, "0,x"), &machine).is_err());
        assert_eq!(cuda(&vars(CUDA, "0,x"), &Machine::default()), Ok(vec![]));
    }

    #[test]
    fn level_zero_shows_what_its_mask_leaves() {
        for (mask, places) in
            [("1,0", vec![0, 1]), ("0.0,0.1,2", vec![0, 2]), ("3", vec![]), ("2,7", vec![2]), ("", vec![0, 1, 2])]
        {
            assert_eq!(level_zero(&vars(LEVEL_ZERO, mask), 3), Ok(places), "{mask}");
        }
        for mask in ["a", "0,,1", "0.a", "-1"] {
            assert!(level_zero(&vars(LEVEL_ZERO, mask), 3).is_err(), "{mask}");
        }
        assert_eq!(level_zero(&vars(LEVEL_ZERO, "a"), 0), Ok(vec![]));
    }
}
