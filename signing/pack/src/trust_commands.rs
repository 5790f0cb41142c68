//! The commands about trust, as clap sees them: keys, policies, keyrings, locks, floors, archives.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ruvllm_manifest::Timestamp;
use ruvllm_pack::sign::VerifyOptions;
use ruvllm_pack::{archive, floor, keyring, lock, sign, trust};
use ruvllm_signing::Retire;
use semver::Version;

use crate::finish;

/// The policy file that `trust` keeps, unless another is named.
const POLICY_FILE: &str = "trust.toml";

/// What a pack is verified against.
#[derive(Args)]
pub(crate) struct Against {
    /// A trust policy; without one, only the project's release key is trusted.
    #[arg(long, visible_alias = "trust", value_name = "FILE")]
    policy: Option<PathBuf>,
    /// A directory of version floors, which also remembers the newest keyring seen.
    #[arg(long, value_name = "DIR")]
    floors: Option<PathBuf>,
    /// Verify as of this time (RFC 3339) instead of now.
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
}

impl Against {
    pub(crate) fn options(self, lock: Option<PathBuf>) -> VerifyOptions {
        VerifyOptions { policy: self.policy, floors: self.floors, lock, at: self.at }
    }
}

/// A publisher to add to a policy or a keyring.
#[derive(Args)]
pub(crate) struct PublisherArgs {
    /// What messages call it; a name that is there already gets a second key.
    #[arg(long)]
    name: String,
    /// Its public key: ed25519:..., an OpenSSH line, a PEM, or a file with one of them, such as the one
    /// that keygen writes. Not needed to give more to a publisher that is there.
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// A pattern of pack names that it may sign, such as acme-*, beside those of before; may be given
    /// several times. Needed once for each key.
    #[arg(long = "pack", value_name = "PATTERN")]
    packs: Vec<String>,
    /// Let it ship code that runs outside of the sandbox.
    #[arg(long)]
    native: bool,
    /// Let its kernels have threads, over a memory that they share.
    #[arg(long)]
    threads: bool,
    /// Let its kernels compute graphs of their pack, through WASI-NN.
    #[arg(long)]
    wasi_nn: bool,
    /// Its signatures do not count before this time.
    #[arg(long, value_name = "TIME")]
    not_before: Option<Timestamp>,
    /// Its signatures do not count from this time on.
    #[arg(long, value_name = "TIME")]
    not_after: Option<Timestamp>,
}

impl From<PublisherArgs> for trust::NewPublisher {
    fn from(args: PublisherArgs) -> trust::NewPublisher {
        let PublisherArgs { name, key, packs, native, threads, wasi_nn, not_before, not_after } =
            args;
        trust::NewPublisher { name, key, packs, native, threads, wasi_nn, not_before, not_after }
    }
}

/// The commands about trust.
#[derive(Subcommand)]
pub(crate) enum TrustCommand {
    /// Sign a pack; signatures of other keys stay.
    Sign {
        /// A secret key: PKCS#8 PEM, OpenSSH, or 32 bytes, not encrypted and readable by its owner
        /// only. May be given several times.
        #[arg(long, value_name = "FILE", required = true)]
        key: Vec<PathBuf>,
        /// The pack.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Check signatures, trust and every file of a pack.
    Verify {
        #[command(flatten)]
        against: Against,
        /// A lock file that must pin the pack.
        #[arg(long, value_name = "FILE")]
        lock: Option<PathBuf>,
        /// The pack: a directory or an .rkp file.
        #[arg(default_value = ".")]
        dir: PathBuf,
    },
    /// Show or change a trust policy file.
    Trust {
        #[command(subcommand)]
        action: PolicyAction,
    },
    /// Make, change, sign and check a keyring: a signed list of publishers and revoked keys.
    ///
    /// Every change writes the next serial and drops the signatures; the roots then sign again.
    Keyring {
        #[command(subcommand)]
        action: KeyringAction,
    },
    /// Give a publisher of a keyring a new key and retire the old one.
    Rotate {
        /// The keyring.
        #[arg(long, value_name = "FILE", default_value = "keyring.json")]
        keyring: PathBuf,
        /// The publisher.
        #[arg(value_name = "PUBLISHER")]
        publisher: String,
        /// Its new public key.
        #[arg(long, value_name = "KEY")]
        new_key: String,
        /// The key that is replaced, where the publisher has several.
        #[arg(long, value_name = "KEY")]
        old_key: Option<String>,
        /// The old key counts until this time.
        #[arg(
            long,
            value_name = "TIME",
            required_unless_present = "revoke",
            conflicts_with = "revoke"
        )]
        until: Option<Timestamp>,
        /// The old key never counts again; say why.
        #[arg(long, value_name = "REASON")]
        revoke: Option<String>,
    },
    /// Pin the exact packs of a deployment in a lock file, or check them against it.
    Lock {
        #[command(flatten)]
        against: Against,
        /// Write nothing; exit code 1 where a pack is not the pinned one.
        #[arg(long)]
        check: bool,
        /// The lock file.
        #[arg(long, short, value_name = "FILE", default_value = "packs.lock")]
        out: PathBuf,
        /// The packs: directories or .rkp files.
        #[arg(required = true, value_name = "DIR")]
        packs: Vec<PathBuf>,
    },
    /// Show the oldest versions that a host accepts, or go back to an older one.
    Floor {
        #[command(subcommand)]
        action: FloorAction,
    },
    /// Write a pack as one .rkp file, or unpack one. The same pack gives the same bytes.
    Archive {
        /// The pack: a directory or an .rkp file.
        dir: PathBuf,
        /// The file to write; beside the pack and named after it if left out.
        #[arg(long, short, value_name = "FILE", conflicts_with = "extract")]
        out: Option<PathBuf>,
        /// Write a directory instead; it must not exist.
        #[arg(long, value_name = "DIR")]
        extract: Option<PathBuf>,
    },
}

/// What to do with a trust policy file.
#[derive(Subcommand)]
pub(crate) enum PolicyAction {
    /// List the publishers of a policy, and of the keyring that it names.
    List {
        /// The policy file; without it trust.toml, or where there is none, the policy built in.
        #[arg(long, visible_alias = "trust", value_name = "FILE")]
        policy: Option<PathBuf>,
        /// Show the policy built in, which hosts follow that are given no other.
        #[arg(long, conflicts_with = "policy")]
        built_in: bool,
        /// A directory of version floors, which also remembers the newest keyring seen.
        #[arg(long, value_name = "DIR")]
        floors: Option<PathBuf>,
        /// Verify as of this time (RFC 3339) instead of now.
        #[arg(long, value_name = "TIME")]
        at: Option<Timestamp>,
    },
    /// Add a publisher, or packs and grants to one that is there; the file is made where there is none.
    Add {
        /// The policy file.
        #[arg(long, value_name = "FILE", default_value = POLICY_FILE)]
        policy: PathBuf,
        #[command(flatten)]
        publisher: PublisherArgs,
    },
    /// Revoke a key for good, or every key of a publisher.
    Revoke {
        /// The policy file.
        #[arg(long, value_name = "FILE", default_value = POLICY_FILE)]
        policy: PathBuf,
        /// A publisher's name or a public key.
        #[arg(value_name = "NAME|KEY")]
        who: String,
    },
}

/// What to do with a keyring file.
#[derive(Subcommand)]
pub(crate) enum KeyringAction {
    /// Begin a keyring with its root keys.
    New {
        /// The file, which must not exist.
        #[arg(long, short, value_name = "FILE", default_value = "keyring.json")]
        out: PathBuf,
        /// The name by which hosts remember it.
        #[arg(long)]
        name: String,
        #[command(flatten)]
        roots: RootArgs,
        /// When it ceases to count (RFC 3339).
        #[arg(long, value_name = "TIME")]
        expires: Option<Timestamp>,
    },
    /// Show a keyring; nothing is verified.
    Show {
        /// The keyring.
        #[arg(default_value = "keyring.json")]
        file: PathBuf,
    },
    /// Add a publisher, or packs and grants to one that is there.
    Add {
        /// The keyring.
        #[arg(default_value = "keyring.json")]
        file: PathBuf,
        #[command(flatten)]
        publisher: PublisherArgs,
    },
    /// Revoke a key for good.
    Revoke {
        /// The keyring.
        #[arg(long, value_name = "FILE", default_value = "keyring.json")]
        keyring: PathBuf,
        /// The public key.
        key: String,
        /// Why, for people.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
    /// Replace the root keys; old and new ones must sign then.
    Roots {
        /// The keyring.
        #[arg(default_value = "keyring.json")]
        file: PathBuf,
        #[command(flatten)]
        roots: RootArgs,
    },
    /// Sign a keyring with root keys; signatures of other keys stay.
    Sign {
        /// The keyring.
        #[arg(default_value = "keyring.json")]
        file: PathBuf,
        /// A secret root key; may be given several times.
        #[arg(long, value_name = "FILE", required = true)]
        key: Vec<PathBuf>,
    },
    /// Verify a keyring as a host would.
    Verify {
        /// The keyring.
        #[arg(default_value = "keyring.json")]
        file: PathBuf,
        #[command(flatten)]
        roots: RootArgs,
        /// A directory that remembers the newest keyring seen.
        #[arg(long, value_name = "DIR")]
        floors: Option<PathBuf>,
        /// Verify as of this time (RFC 3339) instead of now.
        #[arg(long, value_name = "TIME")]
        at: Option<Timestamp>,
    },
}

/// Root keys and how many of them must sign.
#[derive(Args)]
pub(crate) struct RootArgs {
    /// A public root key; may be given several times.
    #[arg(long, value_name = "KEY", required = true)]
    root: Vec<String>,
    /// How many of the roots must sign.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threshold: usize,
}

/// What to do with version floors.
#[derive(Subcommand)]
pub(crate) enum FloorAction {
    /// Show floors, what was active, and the rollbacks that were asked for.
    Show {
        /// The directory of floors.
        #[arg(value_name = "DIR")]
        floors: PathBuf,
    },
    /// Accept an older version again that was active here; who and why is logged.
    Rollback {
        /// The directory of floors.
        #[arg(long, value_name = "DIR")]
        floors: PathBuf,
        /// The pack.
        pack: String,
        /// The version to go back to.
        version: Version,
        /// Who asks for it.
        #[arg(long, value_name = "NAME")]
        operator: String,
        /// Why.
        #[arg(long, value_name = "TEXT")]
        reason: String,
    },
}

impl TrustCommand {
    /// Runs the command and gives the exit code.
    pub(crate) fn run(self, json: bool) -> u8 {
        match self {
            TrustCommand::Sign { key, dir } => finish(sign::sign(&key, &dir), json),
            TrustCommand::Verify { against, lock, dir } => {
                finish(sign::verify(&against.options(lock), &dir), json)
            }
            TrustCommand::Trust { action } => match action {
                PolicyAction::List { policy, built_in, floors, at } => {
                    let usual = Some(PathBuf::from(POLICY_FILE));
                    let usual = usual.filter(|file| !built_in && file.exists());
                    let policy = policy.or(usual);
                    let options = VerifyOptions { policy, floors, lock: None, at };
                    finish(trust::list(&options), json)
                }
                PolicyAction::Add { policy, publisher } => {
                    finish(trust::add(&policy, &publisher.into()), json)
                }
                PolicyAction::Revoke { policy, who } => finish(trust::revoke(&policy, &who), json),
            },
            TrustCommand::Keyring { action } => action.run(json),
            TrustCommand::Rotate { keyring, publisher, new_key, old_key, until, revoke } => {
                let retire = match (until, revoke) {
                    (Some(until), _) => Retire::At(until),
                    (None, reason) => Retire::Revoked { reason: reason.unwrap_or_default() },
                };
                let rotation = keyring::Rotation { publisher, old_key, new_key, retire };
                finish(keyring::rotate(&keyring, &rotation), json)
            }
            TrustCommand::Lock { against, check, out, packs } => {
                let options = against.options(None);
                if check {
                    finish(lock::check(&options, &packs, &out), json)
                } else {
                    finish(lock::lock(&options, &packs, &out), json)
                }
            }
            TrustCommand::Floor { action } => match action {
                FloorAction::Show { floors } => finish(floor::show(&floors), json),
                FloorAction::Rollback { floors, pack, version, operator, reason } => {
                    let rollback = floor::Rollback { pack, to: version, operator, reason };
                    finish(floor::rollback(&floors, &rollback), json)
                }
            },
            TrustCommand::Archive { dir, out, extract } => match extract {
                Some(directory) => finish(archive::extract(&dir, &directory), json),
                None => finish(archive::pack(&dir, out.as_deref()), json),
            },
        }
    }
}

impl KeyringAction {
    fn run(self, json: bool) -> u8 {
        match self {
            KeyringAction::New { out, name, roots, expires } => {
                let RootArgs { root, threshold } = roots;
                let new = keyring::NewKeyring { name, roots: root, threshold, expires_at: expires };
                finish(keyring::new(&out, &new), json)
            }
            KeyringAction::Show { file } => finish(keyring::show(&file), json),
            KeyringAction::Add { file, publisher } => {
                finish(keyring::add(&file, &publisher.into()), json)
            }
            KeyringAction::Revoke { keyring, key, reason } => {
                finish(keyring::revoke(&keyring, &key, &reason), json)
            }
            KeyringAction::Roots { file, roots } => {
                finish(keyring::set_roots(&file, &roots.root, roots.threshold), json)
            }
            KeyringAction::Sign { file, key } => finish(keyring::sign(&file, &key), json),
            KeyringAction::Verify { file, roots, floors, at } => {
                let RootArgs { root, threshold } = roots;
                let check = keyring::KeyringCheck { roots: root, threshold, floors, at };
                finish(keyring::verify(&file, &check), json)
            }
        }
    }
}
