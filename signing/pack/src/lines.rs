//! Source lines of traps, for the author of a pack.
//!
//! What is published has no debug information, and no host reads any. A build leaves the module as the
//! compiler made it in the crate's target directory, with line tables; it belongs to a module of the pack
//! where their code is the same byte for byte. A pack that was built otherwise may have its own.

use std::fs;
use std::path::Path;

use addr2line::gimli::{self, EndianSlice, LittleEndian, SectionId};
use ruvllm_host::{CallError, CodeLocation, Failure, HostError};
use ruvllm_manifest::Manifest;
use wasmparser::{Parser, Payload};

use crate::PackSpec;
use crate::build::{TARGET_DIR, compiled_file};
use crate::scaffold::is_pack_crate;

/// What the directory of a pack crate is called in debug information: where it lies changes no byte.
pub(crate) const CRATE_ROOT: &str = "/pack/";
/// Where the SDK lies in one that `new` has made: a panic ends there, and its author is elsewhere.
const SDK: &str = "sdk/";
/// What the directories of crates that it depends on lie in.
pub(crate) const DEPENDENCIES: &str = "/deps/";

/// The modules of a pack with what is known of their sources.
pub(crate) struct Lines(Vec<Module>);

struct Module {
    kernel: String,
    /// Where the code begins in the module of the pack.
    code: usize,
    /// A module with the same code and line tables.
    with_lines: Vec<u8>,
}

impl Lines {
    /// Of a pack crate whose build left its modules in `target`, or of packs with line tables of their own.
    pub(crate) fn of<'a>(
        manifest: &Manifest,
        file: impl Fn(&str) -> Option<&'a [u8]>,
        crate_and_target: Option<(&PackSpec, &Path)>,
    ) -> Lines {
        let modules = manifest.kernels.iter().filter_map(|entry| {
            let module = file(entry.path.as_str())?;
            let (code, bytes) = code_section(module)?;
            let left = crate_and_target.and_then(|(spec, target)| {
                let source = spec.sources().find(|source| source.id == entry.id)?;
                fs::read(compiled_file(spec, target, source)).ok()
            });
            let candidates = left.into_iter().chain([module.to_vec()]);
            let with_lines = candidates
                .filter(|wasm| code_section(wasm).is_some_and(|(_, other)| other == bytes))
                .find(|wasm| custom_section(wasm, ".debug_line").is_some())?;
            Some(Module { kernel: entry.id.clone(), code, with_lines })
        });
        Lines(modules.collect())
    }

    /// The same, of a directory that may be a pack crate, whose build left its modules at the usual place.
    pub(crate) fn of_directory<'a>(
        directory: &Path,
        manifest: &Manifest,
        file: impl Fn(&str) -> Option<&'a [u8]>,
    ) -> Lines {
        let spec = is_pack_crate(directory).then(|| PackSpec::read(directory).ok()).flatten();
        let target = directory.join(TARGET_DIR);
        Lines::of(manifest, file, spec.as_ref().map(|spec| (spec, &*target)))
    }

    /// Puts the source line into an error of a call of a kernel.
    pub(crate) fn name(&self, kernel: &str, mut error: CallError) -> CallError {
        if let CallError::Failed { failure: Failure::Trap { trap }, .. } = &mut error {
            self.put(kernel, trap.place.as_deref_mut());
        }
        error
    }

    /// Puts source lines into what a host says of a pack.
    pub(crate) fn name_refusals(&self, mut error: HostError) -> HostError {
        if let HostError::Refused { refusals, .. } = &mut error {
            for refusal in refusals {
                self.put(&refusal.kernel, refusal.place.as_deref_mut());
            }
        }
        error
    }

    fn put(&self, kernel: &str, place: Option<&mut CodeLocation>) {
        if let Some(place) = place {
            place.source = self.find(kernel, &place.frames);
        }
    }

    /// File and line of the innermost of these instructions that is the author's own, or of the innermost at
    /// all, where what was called is a library's.
    fn find(&self, kernel: &str, frames: &[u32]) -> Option<String> {
        let Module { code, with_lines, .. } = self.0.iter().find(|m| m.kernel == kernel)?;
        let section = |id: SectionId| {
            let data = custom_section(with_lines, id.name()).unwrap_or_default();
            Ok::<_, gimli::Error>(EndianSlice::new(data, LittleEndian))
        };
        let dwarf = gimli::Dwarf::load(section).ok()?;
        let context = addr2line::Context::from_dwarf(dwarf).ok()?;
        let mut innermost = None;
        for &frame in frames {
            // Debug information counts from the beginning of the code.
            let Some(address) = (frame as usize).checked_sub(*code) else { continue };
            let Ok(mut inlined) = context.find_frames(address as u64).skip_all_loads() else {
                continue;
            };
            while let Ok(Some(frame)) = inlined.next() {
                let Some(location) = frame.location else { continue };
                let (Some(file), Some(line)) = (location.file, location.line) else { continue };
                let own = file.strip_prefix(CRATE_ROOT);
                let file = own.or_else(|| file.strip_prefix(DEPENDENCIES)).unwrap_or(file);
                let found = format!("{file}:{line}");
                if own.is_some_and(|file| !file.starts_with(SDK)) {
                    return Some(found);
                }
                innermost.get_or_insert(found);
            }
        }
        innermost
    }
}

/// Where the code of a module begins, and its bytes.
fn code_section(wasm: &[u8]) -> Option<(usize, &[u8])> {
    sections(wasm).find_map(|payload| match payload {
        Payload::CodeSectionStart { range, .. } => Some((range.start, wasm.get(range)?)),
        _ => None,
    })
}

fn custom_section<'a>(wasm: &'a [u8], name: &str) -> Option<&'a [u8]> {
    sections(wasm).find_map(|payload| match payload {
        Payload::CustomSection(section) if section.name() == name => Some(section.data()),
        _ => None,
    })
}

fn sections(wasm: &[u8]) -> impl Iterator<Item = Payload<'_>> {
    Parser::new(0).parse_all(wasm).map_while(Result::ok)
}
