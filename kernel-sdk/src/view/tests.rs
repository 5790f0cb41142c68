use super::*;

#[repr(C, align(64))]
struct Linear([u8; 1024]);

impl Linear {
    fn new() -> Self {
        Linear([0; 1024])
    }

    fn put(&mut self, at: usize, desc: KernelDescriptor) {
        self.0[at..at + KernelDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
    }

    fn open(&mut self, desc: KernelDescriptor) -> Result<Call<'_>, Status> {
        self.put(0, desc);
        Call::open(Memory::over(&mut self.0), 0)
    }
}

type Spoil = fn(&mut KernelDescriptor);

fn sound() -> KernelDescriptor {
    KernelDescriptor {
        input_a: Region::new(64, 32),
        input_b: Region::new(128, 8),
        output: Region::new(192, 32),
        scratch: Region::new(256, 64),
        params: Region::new(320, 12),
    }
}

#[test]
fn a_sound_call_opens_and_its_parts_have_the_declared_sizes() {
    let mut memory = Linear::new();
    memory.0[64..68].copy_from_slice(&1.5f32.to_le_bytes());
    memory.0[320..324].copy_from_slice(&2u32.to_le_bytes());
    memory.0[324..328].copy_from_slice(&(-3i32).to_le_bytes());
    memory.0[328..332].copy_from_slice(&0.25f32.to_le_bytes());
    let mut call = memory.open(sound()).ok().unwrap();
    let x = call.inputs.take::<f32>(&[2, 4]).unwrap();
    assert_eq!(x.as_slice()[0], 1.5);
    assert_eq!(x.rows(4).count(), 2);
    assert_eq!(call.inputs.take::<F16>(&[4]).unwrap().as_slice().len(), 4);
    assert_eq!(call.inputs.take::<F16>(&[4]).err(), Some(Status::InvalidInput));
    assert_eq!(call.params.take::<u32>(), Ok(2));
    assert_eq!(call.params.take::<i32>(), Ok(-3));
    assert_eq!(call.params.take::<f32>(), Ok(0.25));
    assert_eq!(call.params.take::<usize>(), Err(Status::InvalidParams));
    let mut y = TensorMut::<f32>::new(call.output, &[2, 4]).unwrap();
    y.as_mut_slice()[7] = 7.0;
    assert_eq!(memory.0[220..224], 7f32.to_le_bytes());
}

#[test]
fn a_region_outside_memory_is_refused_with_its_own_status() {
    let cases: [(Spoil, Status); 6] = [
        (|d| d.input_a = Region::new(1000, 32), Status::InvalidInput),
        (|d| d.input_b = Region::new(u32::MAX - 3, 8), Status::InvalidInput),
        (|d| d.output = Region::new(1024, 1), Status::InvalidOutput),
        (|d| d.scratch = Region::new(1008, 64), Status::OutOfMemory),
        (|d| d.params = Region::new(4096, 4), Status::InvalidParams),
        (|d| d.params = Region::new(1020, u32::MAX), Status::InvalidParams),
    ];
    for (spoil, status) in cases {
        let mut desc = sound();
        spoil(&mut desc);
        assert_eq!(Linear::new().open(desc).err(), Some(status), "{desc:?}");
    }
}

#[test]
fn a_descriptor_outside_memory_is_an_internal_error() {
    let mut memory = Linear::new();
    for at in [1000, 1024, usize::MAX] {
        let opened = Call::open(Memory::over(&mut memory.0), at);
        assert_eq!(opened.err(), Some(Status::InternalError));
    }
}

#[test]
fn output_and_scratch_may_not_overlap_anything_but_inputs_may_overlap_each_other() {
    let mut desc = sound();
    desc.output = Region::new(92, 32);
    assert_eq!(Linear::new().open(desc).err(), Some(Status::InvalidOutput));
    let mut desc = sound();
    desc.output = Region::new(300, 32);
    assert_eq!(Linear::new().open(desc).err(), Some(Status::InvalidOutput));
    let mut desc = sound();
    desc.scratch = Region::new(200, 64);
    assert_eq!(Linear::new().open(desc).err(), Some(Status::OutOfMemory));
    let mut desc = sound();
    desc.input_b = desc.input_a;
    assert!(Linear::new().open(desc).is_ok());
}

fn sound_backward() -> BackwardDescriptor {
    BackwardDescriptor {
        input_a: Region::new(64, 32),
        input_b: Region::new(128, 16),
        grad_output: Region::new(192, 32),
        scratch: Region::new(256, 64),
        params: Region::new(320, 12),
        grad_a: Region::new(384, 32),
        grad_b: Region::new(448, 16),
    }
}

fn open_backward(desc: BackwardDescriptor) -> Result<(), Status> {
    let mut memory = Linear::new();
    memory.0[..BackwardDescriptor::SIZE].copy_from_slice(&desc.to_bytes());
    BackwardCall::open(Memory::over(&mut memory.0), 0).map(|_| ())
}

#[test]
fn a_call_for_gradients_has_three_inputs_and_two_outputs() {
    let mut memory = Linear::new();
    memory.0[..BackwardDescriptor::SIZE].copy_from_slice(&sound_backward().to_bytes());
    memory.0[192..196].copy_from_slice(&2.5f32.to_le_bytes());
    let mut call = BackwardCall::open(Memory::over(&mut memory.0), 0).ok().unwrap();
    assert_eq!(call.inputs.take::<f32>(&[2, 4]).unwrap().as_slice().len(), 8);
    let dy = TensorView::<f32>::new(call.grad_output, &[2, 4]).unwrap();
    assert_eq!(dy.as_slice()[0], 2.5);
    call.grad_inputs.take::<f32>(&[2, 4]).unwrap().as_mut_slice()[7] = 7.0;
    call.grad_inputs.take::<f32>(&[4]).unwrap().as_mut_slice()[0] = 8.0;
    assert_eq!(call.grad_inputs.take::<f32>(&[4]).err(), Some(Status::InvalidOutput));
    assert_eq!(memory.0[412..416], 7f32.to_le_bytes());
    assert_eq!(memory.0[448..452], 8f32.to_le_bytes());
}

#[test]
fn gradients_may_not_overlap_anything() {
    type Spoil = fn(&mut BackwardDescriptor);
    let cases: [(Spoil, Status); 6] = [
        (|d| d.grad_a = d.grad_output, Status::InvalidOutput),
        (|d| d.grad_b = d.input_b, Status::InvalidOutput),
        (|d| d.grad_b = Region::new(400, 16), Status::InvalidOutput),
        (|d| d.grad_b = Region::new(1020, 16), Status::InvalidOutput),
        (|d| d.scratch = Region::new(400, 64), Status::OutOfMemory),
        (|d| d.grad_output = Region::new(1020, 32), Status::InvalidInput),
    ];
    for (spoil, status) in cases {
        let mut desc = sound_backward();
        spoil(&mut desc);
        assert_eq!(open_backward(desc), Err(status), "{desc:?}");
    }
    // An input without a gradient.
    let absent = BackwardDescriptor { grad_b: Region::default(), ..sound_backward() };
    assert_eq!(open_backward(absent), Ok(()));
}

#[test]
fn memory_below_the_floor_belongs_to_the_kernel() {
    let mut memory = Linear::new();
    memory.put(512, sound());
    let mut view = Memory::over(&mut memory.0);
    view.floor = 128;
    assert_eq!(Call::open(view, 512).err(), Some(Status::InvalidInput));
    let mut view = Memory::over(&mut memory.0);
    view.floor = 513;
    assert_eq!(Call::open(view, 512).err(), Some(Status::InternalError));
}

#[test]
fn a_tensor_has_exactly_the_bytes_of_its_shape_at_its_alignment() {
    let mut memory = Linear::new();
    let bytes = &mut memory.0;
    assert!(TensorView::<f32>::new(&bytes[..32], &[2, 4]).is_ok());
    for shape in [&[2, 3][..], &[2, 5], &[usize::MAX, 2], &[1 << 62, 4, 8]] {
        assert_eq!(TensorView::<f32>::new(&bytes[..32], shape).err(), Some(Status::InvalidInput));
    }
    assert_eq!(TensorView::<f32>::new(&bytes[2..34], &[8]).err(), Some(Status::InvalidInput));
    assert!(TensorView::<F16>::new(&bytes[2..34], &[16]).is_ok());
    assert!(TensorView::<BlockQ8_0>::new(&bytes[..68], &[2, 32]).is_ok());
    assert!(TensorView::<BlockQ4_0>::new(&bytes[..18], &[32]).is_ok());
    assert_eq!(TensorView::<BlockQ8_0>::new(&bytes[..34], &[31]).err(), Some(Status::InvalidInput));
    assert_eq!(TensorMut::<f32>::new(&mut bytes[..30], &[8]).err(), Some(Status::InvalidOutput));
    let empty = TensorView::<f32>::new(&bytes[1..1], &[0, 7]).unwrap();
    assert_eq!(empty.rows(7).count() + empty.rows(0).count(), 0);
}

#[test]
fn scratch_is_handed_out_aligned_and_only_once() {
    let mut memory = Linear::new();
    let mut scratch = Scratch { rest: &mut memory.0[2..66] };
    let first = scratch.take::<u8>(3).unwrap();
    let second = scratch.take::<f32>(4).unwrap();
    assert!(second.as_ptr().is_aligned());
    assert!(first.as_ptr_range().end <= second.as_ptr().cast());
    assert_eq!(scratch.take::<f32>(12).err(), Some(Status::OutOfMemory));
    assert_eq!(scratch.take::<u32>(usize::MAX).err(), Some(Status::OutOfMemory));
}

#[test]
fn kernel_info_states_the_abi_and_stays_inside_memory() {
    let mut memory = Linear::new();
    assert_eq!(write_info(Memory::over(&mut memory.0), 16, 9), Status::Ok);
    assert_eq!(memory.0[16..24], [1, 0, 0, 0, 9, 0, 0, 0]);
    assert_eq!(write_info(Memory::over(&mut memory.0), 1020, 9), Status::InvalidOutput);
}

#[test]
fn a_failure_can_be_explained_in_what_is_left_of_scratch() {
    let mut memory = Linear::new();
    let mut scratch = Scratch { rest: &mut memory.0[..512] };
    scratch.take::<u8>(256).unwrap().fill(1);
    assert_eq!(scratch.fail(Status::InvalidParams, "eps is 0"), Status::InvalidParams);
    assert!(scratch.take::<u8>(1).is_ok());
    scratch.fail(Status::InvalidParams, "there is no room for this");
    assert_eq!(ruvllm_abi::message::read(&memory.0[..512]), Some(&b"eps is 0"[..]));
    assert!(memory.0[..256].iter().all(|byte| *byte == 1));
}

#[test]
fn threads_have_every_row_and_every_byte_of_scratch_once() {
    for count in 1..5u32 {
        for rows in 0..9u32 {
            let region = Region::new(64, 12 * rows);
            let (mut row, mut at, mut scratch_at) = (0, 64, 512);
            for thread in (0..count).map(|index| Thread::new(index, count)) {
                let own = thread.rows(rows as usize);
                assert_eq!(own.start, row);
                assert!(own.len() as u32 - rows / count <= 1);
                let part = thread.part_of(region, rows).unwrap();
                assert_eq!((part.offset, part.size), (at, 12 * own.len() as u32));
                let scratch = thread.part_of_scratch(Region::new(512, 300));
                assert_eq!((scratch.offset, scratch.offset % 64), (scratch_at, 0));
                (row, at) = (own.end, part.offset + part.size);
                scratch_at = scratch.offset + scratch.size;
            }
            assert_eq!((row as u32, at, scratch_at), (rows, 64 + 12 * rows, 812));
        }
    }
    assert_eq!(Thread::new(4, 4), Thread::ONLY);
    assert_eq!(Thread::new(3, 4).rows(usize::MAX).end, usize::MAX);
    assert_eq!(Thread::ONLY.part_of(Region::new(0, 10), 3), None);
    assert_eq!(Thread::ONLY.part_of(Region::new(0, 10), 0), None);
}

#[test]
fn a_thread_writes_its_own_rows_of_the_output_alone() {
    let mut memory = Linear::new();
    memory.0[320..324].copy_from_slice(&4u32.to_le_bytes());
    for index in 0..3 {
        memory.put(0, sound());
        let thread = Thread::new(index, 3);
        let view = Memory::over(&mut memory.0);
        let mut call = Call::open_part(view, 0, thread, 0).ok().unwrap();
        let x = call.inputs.take::<f32>(&[4, 2]).unwrap();
        let rows = thread.rows(4).len();
        assert_eq!(x.part(thread, 4).unwrap().as_slice().len(), 2 * rows);
        assert_eq!(x.part(thread, 3).err(), Some(Status::InvalidInput));
        let mut y = TensorMut::<f32>::new(call.output, &[rows, 2]).unwrap();
        y.as_mut_slice().fill(index as f32);
    }
    let written: [f32; 8] = core::array::from_fn(|i| {
        f32::from_le_bytes(memory.0[192 + 4 * i..][..4].try_into().unwrap())
    });
    assert_eq!(written, [0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0]);
    // No such word, and rows that do not fill the output.
    let open = |memory: &mut Linear, word| {
        memory.put(0, sound());
        Call::open_part(Memory::over(&mut memory.0), 0, Thread::new(0, 2), word).err()
    };
    assert_eq!(open(&mut memory, 3), Some(Status::InvalidParams));
    memory.0[324..328].copy_from_slice(&5u32.to_le_bytes());
    assert_eq!(open(&mut memory, 1), Some(Status::InvalidOutput));
}
