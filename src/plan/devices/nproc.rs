//! Number of ranks of torchrun's `--nproc-per-node`: counts the devices that torch would count, without torch.

use crate::plan::devices::machine::MachineDevices;
use crate::plan::devices::visible_devices;
use crate::plan::devices::visible_devices::{Device, VisibleList};
use crate::spec::SpecError;
use crate::spec::options::EnvVars;
use crate::spec::torchrun::Nproc;
use std::collections::BTreeSet;

/// Counts the devices of one kind; called only if needed.
pub type CountDevices<'a> = &'a dyn Fn() -> Result<usize, SpecError>;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const LEVEL_ZERO: &str = "ZE_AFFINITY_MASK";

/// The number of ranks that the value of `field` requests. `cpus`: number of CPUs in the affinity mask.
pub fn count(
    requested: Nproc,
    field: &str,
    gpus: CountDevices<'_>,
    xpus: CountDevices<'_>,
    cpus: usize,
) -> Result<usize, SpecError> {
    let some = |count: usize, name: &str, why: &str| match count {
        0 => Err(SpecError::new(field, name, why, "give a number, or auto or cpu")),
        count => Ok(count),
    };
    match requested {
        Nproc::Count(number) => Ok(number),
        Nproc::Cpu => Ok(cpus.max(1)),
        Nproc::Gpu => some(gpus()?, "gpu", "Cuda is not available. The NVIDIA driver shows no GPU"),
        Nproc::Xpu => some(xpus()?, "xpu", "Xpu is not available. Level Zero shows no Intel GPU"),
        Nproc::Auto => match gpus()? {
            0 => match xpus()? {
                0 => Ok(cpus.max(1)),
                xpus => Ok(xpus),
            },
            gpus => Ok(gpus),
        },
    }
}

/// The driver's numbers of the GPUs that are visible to a process with these variables, in its order. A list that the
/// driver would misread is an error. Without a driver the list is ignored.
///
/// Without CUDA_DEVICE_ORDER=PCI_BUS_ID, CUDA's order begins with the fastest GPU, and is the driver's if all are equal.
pub fn cuda(vars: &EnvVars, machine: &MachineDevices) -> Result<Vec<u32>, SpecError> {
    let list = vars.get(CUDA).filter(|_| !machine.gpus.is_empty());
    let Some(list) = list else { return Ok((0..machine.gpus.len() as u32).collect()) };
    match visible_devices::of_cuda(CUDA, list)? {
        // CUDA does not support this value.
        VisibleList::All => Ok(Vec::new()),
        VisibleList::These(devices) => {
            // A process sees only the first MIG device, and of other devices those before one that does not exist.
            let most = if matches!(devices[..], [Device::Mig(_), ..]) { 1 } else { devices.len() };
            Ok(devices.iter().take(most).map_while(|device| machine.number(device)).collect())
        }
    }
}

/// The indices of the Intel GPUs, of `count`, that ZE_AFFINITY_MASK makes visible, in the machine's order, which a mask does
/// not change. Tiles (`0.1`) count as their GPU (Level Zero Specification, "Affinity Mask").
pub fn level_zero(vars: &EnvVars, count: usize) -> Result<Vec<usize>, SpecError> {
    let mask = vars.get(LEVEL_ZERO).filter(|mask| !mask.trim().is_empty() && count > 0);
    let Some(mask) = mask else { return Ok((0..count).collect()) };
    let mut left = BTreeSet::new();
    for element in mask.split(',') {
        let mut numbers = element.trim().split('.').map(|part| part.parse::<u32>().ok());
        let gpu = numbers.next().flatten();
        let Some(gpu) = gpu.filter(|_| numbers.all(|number| number.is_some())) else {
            let why = format!("'{}' is not a device", crate::spec::shown(element));
            return Err(SpecError::new(
                LEVEL_ZERO,
                mask,
                why,
                "give numbers of GPUs, such as 0,1, or of tiles, such as 0.1",
            ));
        };
        left.extend(Some(gpu as usize).filter(|gpu| *gpu < count));
    }
    Ok(left.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::devices::machine::GpuDevice;

    fn vars(name: &str, value: &str) -> EnvVars {
        [(name.to_owned(), value.to_owned())].into()
    }

    fn counted(requested: Nproc, gpus: usize, xpus: usize) -> Result<usize, SpecError> {
        count(requested, "--nproc-per-node", &|| Ok(gpus), &|| Ok(xpus), 6)
    }

    #[test]
    fn each_value_counts_its_devices() {
        for (requested, counts, found) in [
            (Nproc::Auto, (4, 2), 4),
            (Nproc::Auto, (0, 2), 2),
            (Nproc::Auto, (0, 0), 6),
            (Nproc::Cpu, (4, 2), 6),
            (Nproc::Gpu, (4, 2), 4),
            (Nproc::Xpu, (4, 2), 2),
            (Nproc::Count(3), (4, 2), 3),
        ] {
            assert_eq!(counted(requested, counts.0, counts.1), Ok(found), "{requested:?} {counts:?}");
        }
    }

    #[test]
    fn missing_devices_are_reported_with_torchs_message() {
        for (requested, message) in [
            (Nproc::Gpu, "--nproc-per-node gpu: Cuda is not available. "),
            (Nproc::Xpu, "--nproc-per-node xpu: Xpu is not available. "),
        ] {
            let error = counted(requested, 0, 0).unwrap_err().to_string();
            assert!(error.starts_with(message), "{error}");
        }
    }

    #[test]
    fn devices_are_counted_only_if_needed() {
        let never: CountDevices<'_> = &|| Err(SpecError::new("asked", "", "", ""));
        let one: CountDevices<'_> = &|| Ok(1usize);
        let none: CountDevices<'_> = &|| Ok(0usize);
        for (nproc, gpus, xpus) in [
            (Nproc::Cpu, never, never),
            (Nproc::Count(1), never, never),
            (Nproc::Auto, one, never),
            (Nproc::Xpu, never, one),
        ] {
            assert!(count(nproc, "", gpus, xpus, 1).is_ok(), "{nproc:?}");
        }
        assert!(count(Nproc::Auto, "", none, never, 1).is_err(), "an error is not a count of 0");
    }

    #[test]
    fn cuda_shows_the_devices_of_its_list() {
        let gpu = |i: usize| GpuDevice { uuid: format!("GPU-{i}{i}{i}{i}aaaa-0000"), migs: Vec::new() };
        let mut machine = MachineDevices { gpus: (0..4).map(gpu).collect(), ..MachineDevices::default() };
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
        assert_eq!(cuda(&EnvVars::new(), &machine), Ok(vec![0, 1, 2, 3]));
        assert!(cuda(&vars(CUDA, "0,x"), &machine).is_err());
        assert_eq!(cuda(&vars(CUDA, "0,x"), &MachineDevices::default()), Ok(vec![]));
    }

    #[test]
    fn level_zero_shows_the_devices_of_its_mask() {
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
