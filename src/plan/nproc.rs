//! `--nproc-per-node` of torchrun: a number, or a word for what torch would count, without torch.

use super::machine::Machine;
use super::visible::{self, Device, List};
use crate::spec::SpecError;
use crate::spec::options::Vars;
use crate::spec::spawn::python_int;
use std::collections::BTreeSet;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nproc {
    /// So many; not 0.
    Number(usize),
    /// As many as there are GPUs, or XPUs, or else CPUs.
    Auto,
    /// CPUs in the affinity mask.
    Cpu,
    /// GPUs that CUDA would show.
    Gpu,
    /// Intel's GPUs that Level Zero would show.
    Xpu,
}

/// Devices of one kind, asked for only where they count.
pub type Count<'a> = &'a dyn Fn() -> Result<usize, SpecError>;

const CUDA: &str = "CUDA_VISIBLE_DEVICES";
const LEVEL_ZERO: &str = "ZE_AFFINITY_MASK";

impl Nproc {
    /// Reads the value of `field`, a number as Python's `int` reads it.
    pub fn parse(field: &str, text: &str) -> Result<Self, SpecError> {
        let refuse = |why: String| {
            Err(SpecError::new(field, text, why, "give a number from 1 on, or one of auto, cpu, gpu and xpu"))
        };
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "gpu" => Ok(Self::Gpu),
            "xpu" => Ok(Self::Xpu),
            _ => match python_int(text) {
                Ok(number @ 1..) => Ok(Self::Number(usize::try_from(number).unwrap_or(usize::MAX))),
                Ok(_) => refuse("at least one process has to run".into()),
                Err(_) => refuse(format!("Unsupported nproc_per_node value: {}", crate::spec::shown(text))),
            },
        }
    }

    /// How many ranks that is here. `cpus`: those in the affinity mask.
    pub fn count(self, field: &str, gpus: Count<'_>, xpus: Count<'_>, cpus: usize) -> Result<usize, SpecError> {
        let some = |count: usize, name: &str, why: &str| match count {
            0 => Err(SpecError::new(field, name, why, "give a number, or auto or cpu")),
            count => Ok(count),
        };
        match self {
            Self::Number(number) => Ok(number),
            Self::Cpu => Ok(cpus.max(1)),
            Self::Gpu => some(gpus()?, "gpu", "Cuda is not available. The NVIDIA driver would show no GPU"),
            Self::Xpu => some(xpus()?, "xpu", "Xpu is not available. Level Zero would show no GPU of Intel's"),
            Self::Auto => match gpus()? {
                0 => match xpus()? {
                    0 => Ok(cpus.max(1)),
                    xpus => Ok(xpus),
                },
                gpus => Ok(gpus),
            },
        }
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

    fn asked(text: &str, gpus: usize, xpus: usize) -> Result<usize, String> {
        let nproc = Nproc::parse("--nproc-per-node", text).map_err(|error| error.to_string())?;
        nproc.count("--nproc-per-node", &|| Ok(gpus), &|| Ok(xpus), 6).map_err(|error| error.to_string())
    }

    #[test]
    fn words_are_counted_and_numbers_read_as_python_reads_them() {
        for (text, counts, found) in [
            ("auto", (4, 2), 4),
            ("auto", (0, 2), 2),
            ("auto", (0, 0), 6),
            ("cpu", (4, 2), 6),
            ("gpu", (4, 2), 4),
            ("xpu", (4, 2), 2),
            (" +3 ", (4, 2), 3),
            ("1_0", (4, 2), 10),
            ("007", (4, 2), 7),
        ] {
            assert_eq!(asked(text, counts.0, counts.1), Ok(found), "{text} {counts:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_said_in_torchs_words() {
        for (text, words) in [
            ("gpu", "--nproc-per-node gpu: Cuda is not available. "),
            ("xpu", "--nproc-per-node xpu: Xpu is not available. "),
            ("abc", "--nproc-per-node abc: Unsupported nproc_per_node value: abc;"),
            ("", "--nproc-per-node: Unsupported nproc_per_node value: ;"),
            ("1__0", "--nproc-per-node 1__0: Unsupported"),
            ("_1", "--nproc-per-node _1: Unsupported"),
            ("1.5", "--nproc-per-node 1.5: Unsupported"),
            ("0", "--nproc-per-node 0: at least one"),
            ("-2", "--nproc-per-node -2: at least one"),
            ("-99999999999999999999", "--nproc-per-node -99999999999999999999: at least one"),
        ] {
            let error = asked(text, 0, 0).unwrap_err();
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
            (Nproc::Number(1), never, never),
            (Nproc::Auto, one, never),
            (Nproc::Xpu, never, one),
        ] {
            assert!(nproc.count("", gpus, xpus, 1).is_ok(), "{nproc:?}");
        }
        assert!(Nproc::Auto.count("", none, never, 1).is_err(), "an error is not taken for none");
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
