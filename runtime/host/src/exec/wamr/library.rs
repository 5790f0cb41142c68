//! WAMR's C API (`wasm_export.h`), as much of it as is used, over a shared library that the user names or
//! the one that this program was linked with.
//!
//! The interface has changed from release to release; what is declared here holds for all of them from 2020
//! on. The third argument of `wasm_runtime_lookup_function` is gone in newer ones, which ignore it, and
//! `wasm_runtime_addr_app_to_native` takes an offset of 32 bits before 2.0 and of 64 since then. What
//! older ones lack is optional.
//!
//! A library is loaded and set up once in a process and stays: threads, modules and signal handlers refer
//! to it.
#![allow(unsafe_code)]

use super::{calls, signals};
use crate::exec::meter::{HOST, TICK};
use crate::threads::lock;
use semver::Version;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

/// Bytes of a message of the library's.
const MESSAGE: usize = 256;

/// The stack of the thread that sets the library up, which touches all of it.
const SETUP_STACK: usize = 256 << 10;

/// What the library calls `NativeSymbol`.
#[repr(C)]
struct NativeSymbol {
    symbol: *const c_char,
    function: *const c_void,
    signature: *const c_char,
    attachment: *mut c_void,
}

/// What is left of a thread's stack for the library's own functions and the host's, which compiled code calls.
const RESERVED_STACK: usize = 64 << 10;

/// A loaded module, an instance of one, a function of an instance, and the stack that functions run on.
pub(super) type Module = *mut c_void;
pub(super) type Instance = *mut c_void;
pub(super) type Function = *mut c_void;
pub(super) type Environment = *mut c_void;

/// Names and types of the functions, once for both ways to get them.
macro_rules! api {
    ($(fn $field:ident = $name:ident($($arg:ty),*) $(-> $result:ty)?;)*) => {
        #[derive(Clone, Copy)]
        struct Api {
            $($field: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*
        }

        impl Api {
            /// Those of a shared library.
            fn of(library: &libloading::Library) -> Result<Self, String> {
                $(
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    // SAFETY: the type is that of the function of this name in `wasm_export.h`, see above.
                    let $field = *unsafe { library.get(name) }.map_err(|e| {
                        let name = stringify!($name);
                        format!("it is no WAMR library: {name} is missing: {e}")
                    })?;
                )*
                Ok(Self { $($field,)* })
            }

            /// Those that this program was linked with.
            #[cfg(feature = "wamr-bundled")]
            fn linked() -> Self {
                unsafe extern "C" {
                    $(fn $name($(_: $arg),*) $(-> $result)?;)*
                }
                Self { $($field: $name,)* }
            }
        }
    };
}

api! {
    fn init = wasm_runtime_init() -> bool;
    fn register_natives =
        wasm_runtime_register_natives(*const c_char, *mut NativeSymbol, u32) -> bool;
    fn load = wasm_runtime_load(*mut u8, u32, *mut c_char, u32) -> Module;
    fn unload = wasm_runtime_unload(Module);
    fn instantiate = wasm_runtime_instantiate(Module, u32, u32, *mut c_char, u32) -> Instance;
    fn deinstantiate = wasm_runtime_deinstantiate(Instance);
    fn create_environment = wasm_runtime_create_exec_env(Instance, u32) -> Environment;
    fn destroy_environment = wasm_runtime_destroy_exec_env(Environment);
    fn lookup_function =
        wasm_runtime_lookup_function(Instance, *const c_char, *const c_char) -> Function;
    fn call = wasm_runtime_call_wasm(Environment, Function, u32, *mut u32) -> bool;
    fn exception = wasm_runtime_get_exception(Instance) -> *const c_char;
    fn set_exception = wasm_runtime_set_exception(Instance, *const c_char);
    fn address = wasm_runtime_addr_app_to_native(Instance, u32) -> *mut c_void;
}

/// Symbols that only newer libraries have.
#[derive(Clone, Copy, Default)]
struct OptionalSymbols {
    /// `wasm_runtime_addr_app_to_native` from 2.0 on.
    address: Option<unsafe extern "C" fn(Instance, u64) -> *mut c_void>,
    /// How far down the stack of its thread compiled code of an environment may go.
    bound_stack: Option<unsafe extern "C" fn(Environment, *mut u8)>,
    /// Where the stack of the calling thread ends, guard pages included. Null where that is not known.
    stack_end: Option<unsafe extern "C" fn() -> *mut u8>,
    init_thread: Option<unsafe extern "C" fn() -> bool>,
    end_thread: Option<unsafe extern "C" fn()>,
}

/// A library that is set up.
pub(super) struct Library {
    api: Api,
    optional: OptionalSymbols,
    /// Zero for those from before versions had numbers.
    version: Version,
    /// Of the library's file; of the version where it is linked.
    digest: [u8; 32],
    /// Loading takes turns: not every release says that it may happen on several threads at once.
    loading: Mutex<()>,
}

/// Libraries that were asked for: by path, or the one that is linked.
type Known = Vec<(Option<PathBuf>, Result<&'static Library, String>)>;

impl Library {
    /// The library at a path, or else the one that this program was built with.
    ///
    /// # Errors
    /// A sentence: there is none, it cannot be loaded, or it is none of WAMR.
    pub(super) fn open(path: Option<&Path>) -> Result<&'static Self, String> {
        static KNOWN: Mutex<Known> = Mutex::new(Vec::new());
        let mut known = lock(&KNOWN);
        let path = match path {
            Some(path) => Some(std::fs::canonicalize(path).map_err(|e| {
                format!(
                    "there is no WAMR library {}: {e}; build or install libiwasm",
                    path.display()
                )
            })?),
            None => None,
        };
        if let Some((_, library)) = known.iter().find(|(other, _)| *other == path) {
            return library.clone();
        }
        let opened = match &path {
            Some(path) => Self::load_shared(path).map_err(|e| format!("{}: {e}", path.display())),
            None => Self::linked(),
        };
        let set_up = opened.and_then(|library| {
            let library: &'static Self = Box::leak(Box::new(library));
            library.set_up().map(|()| library)
        });
        known.push((path, set_up.clone()));
        set_up
    }

    fn load_shared(path: &Path) -> Result<Self, String> {
        let file = std::fs::read(path).map_err(|e| format!("cannot read it: {e}"))?;
        let digest = blake3::hash(&file).into();
        drop(file);
        // SAFETY: what runs when a library is loaded is its own code, and the user who configures a path
        // vouches for it, as for the program itself.
        let library = unsafe { libloading::Library::new(path) }.map_err(|e| e.to_string())?;
        let api = Api::of(&library)?;
        // SAFETY: as for `Api::of`; functions that are missing are left out.
        let optional = unsafe {
            OptionalSymbols {
                address: None,
                bound_stack: library
                    .get(b"wasm_runtime_set_native_stack_boundary\0")
                    .ok()
                    .map(|f| *f),
                stack_end: library.get(b"os_thread_get_stack_boundary\0").ok().map(|f| *f),
                init_thread: library.get(b"wasm_runtime_init_thread_env\0").ok().map(|f| *f),
                end_thread: library.get(b"wasm_runtime_destroy_thread_env\0").ok().map(|f| *f),
            }
        };
        type GetVersion = unsafe extern "C" fn(*mut u32, *mut u32, *mut u32);
        // SAFETY: as above.
        let get_version = unsafe { library.get::<GetVersion>(b"wasm_runtime_get_version\0") };
        let version = get_version.map_or(Version::new(0, 0, 0), |get_version| {
            let (mut major, mut minor, mut patch) = (0, 0, 0);
            // SAFETY: it writes the three numbers, and reads nothing that would have to be set up.
            unsafe { get_version(&mut major, &mut minor, &mut patch) };
            Version::new(major.into(), minor.into(), patch.into())
        });
        let wide = version >= Version::new(2, 0, 0);
        // SAFETY: as above; from this version on the offset has 64 bits.
        let address = unsafe { library.get(b"wasm_runtime_addr_app_to_native\0") };
        let address = address.ok().map(|f| *f).filter(|_| wide);
        // Its functions are used for as long as the process lives.
        std::mem::forget(library);
        let optional = OptionalSymbols { address, ..optional };
        Ok(Self { api, optional, version, digest, loading: Mutex::default() })
    }

    #[cfg(feature = "wamr-bundled")]
    fn linked() -> Result<Self, String> {
        Ok(Self {
            api: Api::linked(),
            optional: OptionalSymbols::default(),
            version: Version::new(0, 0, 0),
            digest: blake3::hash(b"wamr-sys 0.1.1").into(),
            loading: Mutex::default(),
        })
    }

    #[cfg(not(feature = "wamr-bundled"))]
    fn linked() -> Result<Self, String> {
        Err("this program is linked with no WAMR".to_owned())
    }

    /// Has the library set itself up, on a thread that ends: it changes the stack for signals, and
    /// sometimes the whole stack, of the thread that it does so on.
    fn set_up(&'static self) -> Result<(), String> {
        let set_up = move || {
            // SAFETY: called once, before anything else of the library.
            let done = unsafe { (self.api.init)() };
            if !done {
                return Err("WAMR could not be initialised".to_owned());
            }
            let natives = Box::leak(Box::new([NativeSymbol {
                symbol: TICK.as_ptr(),
                function: calls::tick as *const c_void,
                signature: c"()i".as_ptr(),
                attachment: std::ptr::null_mut(),
            }]));
            // SAFETY: the array and its strings live for ever; the function has the signature that is stated,
            // after the environment that every such function gets.
            let done =
                unsafe { (self.api.register_natives)(HOST.as_ptr(), natives.as_mut_ptr(), 1) };
            self.end_thread();
            if done { Ok(()) } else { Err("WAMR does not take the host's function".to_owned()) }
        };
        let thread = thread::Builder::new().name("wamr-setup".to_owned()).stack_size(SETUP_STACK);
        signals::around_setup(self.optional.init_thread.is_some(), || {
            let thread = thread.spawn(set_up).map_err(|e| format!("cannot start a thread: {e}"))?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.digest
    }

    /// Whether it can run machine code that was compiled ahead of time. Those from before versions had
    /// numbers take over the stack and the signals of every thread that calls such code.
    pub(super) fn runs_compiled(&self) -> bool {
        self.version > Version::new(0, 0, 0)
    }

    /// Makes the calling thread one that may call modules. Cheap where it is one.
    ///
    /// # Errors
    /// The library refuses the thread.
    pub(super) fn enter_thread(&'static self) -> Result<(), String> {
        let Some(init) = self.optional.init_thread else { return Ok(()) };
        thread_local! {
            static LAST: Cell<*const Library> = const { Cell::new(std::ptr::null()) };
            static ENTERED: RefCell<Vec<ThreadEnvironment>> = const { RefCell::new(Vec::new()) };
        }
        if LAST.get() == std::ptr::from_ref(self) {
            return Ok(());
        }
        ENTERED.with_borrow_mut(|entered| {
            if !entered.iter().any(|other| std::ptr::eq(other.0, self)) {
                // SAFETY: once for this thread, which undoes it when it ends.
                if !signals::around_thread(|| unsafe { init() }) {
                    return Err("WAMR could not be initialised on a thread".to_owned());
                }
                entered.push(ThreadEnvironment(self));
            }
            LAST.set(self);
            Ok(())
        })
    }

    fn end_thread(&self) {
        if let Some(end) = self.optional.end_thread {
            // SAFETY: the thread was made one that may call modules, by `init` or `enter_thread`.
            unsafe { end() };
        }
    }

    /// Loads a module. It refers to the bytes, and may change them, until [`Library::unload`].
    ///
    /// # Safety
    /// The bytes must live, and be left alone, until the module is unloaded.
    ///
    /// # Errors
    /// What the library says of them.
    pub(super) unsafe fn load(&'static self, bytes: &mut [u8]) -> Result<Module, String> {
        self.enter_thread()?;
        let _turn = lock(&self.loading);
        let len = u32::try_from(bytes.len()).map_err(|_| "the module is too large".to_owned())?;
        let mut message = [0; MESSAGE];
        // SAFETY: both buffers are as long as is said; the caller keeps the bytes.
        let module = unsafe {
            (self.api.load)(bytes.as_mut_ptr(), len, message.as_mut_ptr(), MESSAGE as u32)
        };
        if module.is_null() { Err(text(&message)) } else { Ok(module) }
    }

    /// # Safety
    /// The module is loaded, no instance of it is left, and it is not used again.
    pub(super) unsafe fn unload(&self, module: Module) {
        let _turn = lock(&self.loading);
        // SAFETY: as the caller says.
        unsafe { (self.api.unload)(module) }
    }

    /// Makes an instance, without a heap of the library's own.
    ///
    /// # Safety
    /// The module is loaded, and stays so for as long as the instance is used.
    ///
    /// # Errors
    /// What the library says.
    pub(super) unsafe fn instantiate(
        &'static self,
        module: Module,
        stack: u32,
    ) -> Result<(Instance, Environment), String> {
        self.enter_thread()?;
        let mut message = [0; MESSAGE];
        let buffer = message.as_mut_ptr();
        // SAFETY: as the caller says; the buffer is as long as is said.
        let instance = unsafe { (self.api.instantiate)(module, stack, 0, buffer, MESSAGE as u32) };
        if instance.is_null() {
            return Err(text(&message));
        }
        // SAFETY: the instance was made just now.
        let environment = unsafe { (self.api.create_environment)(instance, stack) };
        if environment.is_null() {
            // SAFETY: likewise, and it is not used again.
            unsafe { (self.api.deinstantiate)(instance) };
            return Err("no memory for its stack".to_owned());
        }
        Ok((instance, environment))
    }

    /// # Safety
    /// They were made together by [`Library::instantiate`] and are not used again.
    pub(super) unsafe fn end_instance(&'static self, instance: Instance, environment: Environment) {
        // Nothing of the module runs here, so a thread that could not be entered does no harm.
        let _ = self.enter_thread();
        // SAFETY: as the caller says.
        unsafe {
            (self.api.destroy_environment)(environment);
            (self.api.deinstantiate)(instance);
        }
    }

    /// The exported function of that name, if there is one.
    ///
    /// # Safety
    /// The instance lives; so long may the function be used.
    pub(super) unsafe fn function(&self, instance: Instance, name: &CStr) -> Option<Function> {
        // SAFETY: as the caller says.
        let function =
            unsafe { (self.api.lookup_function)(instance, name.as_ptr(), std::ptr::null()) };
        (!function.is_null()).then_some(function)
    }

    /// Gives compiled code so many bytes of this thread's stack from here on, or what is left of it.
    ///
    /// # Safety
    /// The environment lives, and nobody else uses it meanwhile; its next call is on this thread.
    pub(super) unsafe fn bound_stack(&self, environment: Environment, bytes: u32) {
        let (Some(bound), Some(end)) = (self.optional.bound_stack, self.optional.stack_end) else {
            return;
        };
        // SAFETY: it takes nothing, and this thread was entered.
        let end = unsafe { end() };
        if !end.is_null() {
            let here = std::ptr::from_ref(&end).addr();
            let lowest = here.saturating_sub(bytes as usize).max(end.addr() + RESERVED_STACK);
            // SAFETY: as the caller says; the address is compared with, and never read from.
            unsafe { bound(environment, std::ptr::without_provenance_mut(lowest)) }
        }
    }

    /// Calls a function with its arguments, in whose place it gives its result. `false` where it trapped.
    ///
    /// # Safety
    /// The function is one of the environment's instance, nobody else uses that meanwhile, this thread was
    /// entered, and `words` has as many places as the function has arguments or results, of which `args`
    /// are arguments.
    #[inline]
    pub(super) unsafe fn call(
        &self,
        environment: Environment,
        function: Function,
        args: u32,
        words: &mut [u32],
    ) -> bool {
        // SAFETY: as the caller says.
        unsafe { (self.api.call)(environment, function, args, words.as_mut_ptr()) }
    }

    /// Why a call trapped.
    ///
    /// # Safety
    /// The instance lives, and no call runs in it.
    pub(super) unsafe fn exception(&self, instance: Instance) -> String {
        // SAFETY: as the caller says; the message is copied before anything could change it.
        unsafe {
            let message = (self.api.exception)(instance);
            if message.is_null() {
                return String::new();
            }
            let message = CStr::from_ptr(message).to_string_lossy();
            message.strip_prefix("Exception: ").unwrap_or(&message).to_owned()
        }
    }

    /// Ends the call that runs in an instance, as soon as the host's function returns.
    ///
    /// # Safety
    /// The instance lives, and its call has called the host on this thread.
    pub(super) unsafe fn end_call(&self, instance: Instance, why: &CStr) {
        // SAFETY: as the caller says; the message is copied.
        unsafe { (self.api.set_exception)(instance, why.as_ptr()) }
    }

    /// Where the memory of an instance begins: valid until it grows. Null where it has none.
    ///
    /// # Safety
    /// The instance lives.
    pub(super) unsafe fn memory(&self, instance: Instance) -> *mut u8 {
        // SAFETY: as the caller says; which of the two the library has follows from its version.
        let address = unsafe {
            match self.optional.address {
                Some(address) => address(instance, 0),
                None => (self.api.address)(instance, 0),
            }
        };
        address.cast()
    }
}

/// A thread that may call modules of a library, until it ends.
struct ThreadEnvironment(&'static Library);

impl Drop for ThreadEnvironment {
    fn drop(&mut self) {
        self.0.end_thread();
    }
}

/// What the library wrote to a buffer.
fn text(message: &[c_char; MESSAGE]) -> String {
    let bytes = message.iter().map(|&c| c as u8).take_while(|&c| c != 0).collect::<Vec<u8>>();
    match bytes.is_empty() {
        true => "WAMR gives no reason".to_owned(),
        false => String::from_utf8_lossy(&bytes).into_owned(),
    }
}
