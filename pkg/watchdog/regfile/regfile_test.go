package regfile

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/testing/requirements"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

func openBoth(t testing.TB) (host, dnp *File, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "registers")
	return mustOpen(t, path, fault.HalfHost), mustOpen(t, path, fault.HalfDNP), path
}

func mustOpen(t testing.TB, path string, half fault.Half) *File {
	t.Helper()
	f, err := Open(path, half)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refuse fails the test unless the error contains each of want.
func refuse(t *testing.T, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one that says %q", want)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
}

func TestMutualWatchdog(t *testing.T) {
	host, dnp, path := openBoth(t)
	if w, s, err := host.TakeDNP(); err != nil || s != (watchdog.Sample{}) || w != (watchdog.DNPWord{}) {
		t.Errorf("a file nobody wrote: %+v %+v %v", w, s, err)
	}
	dw := watchdog.DNPWord{Core: watchdog.HealthSick}
	dw.Links[grid.XPlus.Index()] = watchdog.HealthBroken
	hw := watchdog.HostWord{Memory: watchdog.HealthBroken}
	var desc watchdog.DescriptorWord
	desc.Neighbours[grid.ZMinus.Index()].ServiceNetwork = true // bit 0, which is no Valid bit here
	must(t, dnp.StoreDNP(dw))
	must(t, dnp.StoreDescriptor(desc))
	must(t, host.StoreHost(hw))

	dw.Valid, hw.Valid = true, true
	if w, raw, err := host.LoadDNP(); err != nil || w != dw || raw != dw.Encode() {
		t.Errorf("load: %+v 0x%08x %v", w, raw, err)
	}
	for read, valid := range []bool{true, false} {
		dw.Valid = read == 0
		if w, s, err := host.TakeDNP(); err != nil || w.Links != dw.Links || s != (watchdog.Sample{Valid: valid}) {
			t.Errorf("take %d of DNP word: %+v %+v %v", read, w, s, err)
		}
		if w, s, err := dnp.TakeHost(); err != nil || w.Memory != hw.Memory || s != (watchdog.Sample{Valid: valid}) {
			t.Errorf("take %d of host word: %+v %+v %v", read, w, s, err)
		}
	}
	if w, raw, err := host.LoadDescriptor(); err != nil || w != desc || raw != 1 {
		t.Errorf("descriptor: %+v 0x%x %v", w, raw, err)
	}
	// The words are at the paper's addresses, little-endian.
	b, err := os.ReadFile(path)
	must(t, err)
	hw.Valid = false
	if got := binary.LittleEndian.Uint32(b[0xec4:]); len(b) != Size || got != hw.Encode() {
		t.Errorf("%d bytes, 0x%08x at 0xec4", len(b), got)
	}
	ro, err := OpenReadOnly(path)
	must(t, err)
	defer func() { must(t, ro.Close()) }()
	if w, _, err := ro.LoadHost(); err != nil || w != hw || ro.Half() != 0 {
		t.Errorf("read-only: %+v %v", w, err)
	}
	must(t, ro.Check())
	must(t, host.Check())
	if host.Corrupt()+dnp.Corrupt() != 0 || host.Path() != path || host.Half() != fault.HalfHost {
		t.Error("something was corrupt, or path and half are wrong")
	}
	t.Logf("pages locked: %t", host.locked)
}

func TestWordsOutliveProcesses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	dnp, err := Open(path, fault.HalfDNP)
	must(t, err)
	must(t, dnp.SetEpoch(fault.HalfDNP, 7))
	must(t, dnp.StoreDNP(watchdog.DNPWord{Core: watchdog.HealthSick}))
	must(t, dnp.Close())
	must(t, dnp.Close())
	refuse(t, dnp.StoreDNP(watchdog.DNPWord{}), "closed", path)
	refuse(t, dnp.Check(), "closed")

	host := mustOpen(t, path, fault.HalfHost)
	if w, s, err := host.TakeDNP(); err != nil || !s.Valid || w.Core != watchdog.HealthSick || host.Epoch(fault.HalfDNP) != 7 {
		t.Errorf("%+v %+v %v", w, s, err)
	}
}

// TestProbesDoNotRefuseHalf: a recovery daemon asks again and again who serves a half, while that half starts.
func TestProbesDoNotRefuseHalf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			// At a start the name in the file may be that of the last holder, or none.
			if _, _, err := HolderOf(path, fault.HalfDNP); errors.Is(err, os.ErrPermission) {
				done <- err
				return
			}
		}
	}()
	for i := range 2000 {
		lock, err := takeLock(path, fault.HalfDNP)
		if err != nil {
			t.Errorf("start %d: %v", i, err)
			break
		}
		must(t, lock.Close())
	}
	close(stop)
	must(t, <-done)
}

func TestSecondAgentRefused(t *testing.T) {
	_, _, path := openBoth(t)
	_, err := Open(path, fault.HalfHost)
	if !errors.Is(err, ErrInUse) {
		t.Errorf("error %v is not ErrInUse", err)
	}
	refuse(t, err, path, "host half", "process "+strconv.Itoa(os.Getpid()), "second agent")
	// Poke and a reader are no second agent.
	must(t, Poke(path, watchdog.AddrMaxHops, 9))
}

// fullDisk is a file that cannot grow.
type fullDisk struct{ b []byte }

func (d *fullDisk) WriteAt(b []byte, at int64) (int, error) {
	n := copy(d.b[at:], b)
	if n < len(b) {
		return n, unix.ENOSPC
	}
	return n, nil
}

func (d *fullDisk) Truncate(size int64) error {
	d.b = d.b[:size]
	return nil
}

// TestHolderOnFullDisk: the holder of a lock is known even if it took the lock on a full disk, provided that there was
// a holder before.
func TestHolderOnFullDisk(t *testing.T) {
	d := &fullDisk{[]byte("4711 123456 proven\n")}
	must(t, Holder{PID: 815, Start: 2345}.writeTo(d))
	if got, want := string(d.b), "815 2345\n"; got != want {
		t.Errorf("%q: want %q", got, want)
	}
}

// TestSuccessorWithSamePIDIsAnotherHolder: in containers a half and its successor have the same PID, and may have
// started in one tick of the clock.
func TestSuccessorWithSamePIDIsAnotherHolder(t *testing.T) {
	h := Holder{PID: 12, Start: 34, Space: 56}
	for _, tc := range []struct {
		other Holder
		want  bool
	}{
		{h, true},
		{Holder{PID: 12, Start: 34, Space: 56, Tests: Proven}, true},
		{Holder{PID: 12, Start: 34}, true}, // in the form of earlier versions
		{Holder{PID: 12}, true},
		{Holder{PID: 13, Start: 34, Space: 56}, false},
		{Holder{PID: 12, Start: 35, Space: 56}, false},
		{Holder{PID: 12, Start: 34, Space: 57}, false},
		{Holder{}, false},
	} {
		if got, back := h.Same(tc.other), tc.other.Same(h); got != tc.want || back != tc.want {
			t.Errorf("%+v and %+v: %t, %t: want %t", h, tc.other, got, back, tc.want)
		}
	}
}

// TestLockIdentifiesServingProcess: the lock identifies the process that serves a half for good: another process may get its id.
func TestLockIdentifiesServingProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	if h, held, err := HolderOf(path, fault.HalfDNP); held || err != nil {
		t.Errorf("never served: %+v, %t, %v", h, held, err)
	}
	f := mustOpen(t, path, fault.HalfDNP)
	start, err := StartTime(os.Getpid())
	if err != nil || start == 0 {
		t.Fatal(start, err)
	}
	if h, held, err := HolderOf(path, fault.HalfDNP); !held || err != nil ||
		h != (Holder{PID: os.Getpid(), Start: start, Space: PIDNamespace()}) || h.Space == 0 {
		t.Errorf("served: %+v, %t, %v: want process %d of %d", h, held, err, os.Getpid(), start)
	}
	for _, what := range []string{"report path:\naltered " + strings.Repeat("x", maxTests), Proven} {
		if err := f.NoteTests(what); err != nil {
			t.Fatal(err)
		}
		if h, err := LastHolder(path, fault.HalfDNP); err != nil ||
			!strings.HasPrefix(what, h.Tests[:min(len(h.Tests), len("report path:"))]) || len(h.Tests) > maxTests {
			t.Errorf("%+v, %v", h, err)
		}
	}
	if h, err := LastHolder(path, fault.HalfDNP); err != nil ||
		h != (Holder{PID: os.Getpid(), Start: start, Space: PIDNamespace(), Tests: Proven}) {
		t.Errorf("proven: %+v, %v", h, err)
	}
	for text, want := range map[string]Holder{
		"12\n": {PID: 12}, "12 34\n": {PID: 12, Start: 34}, "12 34 proven\n": {PID: 12, Start: 34,
			Tests: Proven}, "12 34\n6 7 proven\n": {PID: 12, Start: 34},
		"12 34 proven\n12 34 in 56\n": {PID: 12, Start: 34, Space: 56, Tests: Proven}, "12 34\n12 34 in 56\nproven\n": {PID: 12,
			Start: 34, Space: 56},
		"12 34\n6 7 in 56\n": {PID: 12, Start: 34}, "12 34\n12 34 in \n": {PID: 12, Start: 34}, // torn, or left over
	} {
		if err := os.WriteFile(path+".dnp", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if h, held, err := HolderOf(path, fault.HalfDNP); !held || err != nil || h != want {
			t.Errorf("%q: %+v, %t, %v: want %+v", text, h, held, err, want)
		}
	}
	for _, text := range []string{"", "x", "12 y", "-"} {
		if err := os.WriteFile(path+".dnp", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, held, err := HolderOf(path, fault.HalfDNP); !held || err == nil {
			t.Errorf("%q: %t, %v", text, held, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if h, held, err := HolderOf(path, fault.HalfDNP); held || err != nil {
		t.Errorf("no longer served: %+v, %t, %v", h, held, err)
	}
	if err := f.NoteTests(Proven); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if _, err := StartTime(-1); err == nil {
		t.Error("no such process has a start time")
	}
}

func TestOwnersOnly(t *testing.T) {
	host, dnp, path := openBoth(t)
	ro, err := OpenReadOnly(path)
	must(t, err)
	defer func() { must(t, ro.Close()) }()
	refuse(t, host.StoreDNP(watchdog.DNPWord{}), "open by the host half", "want the dnp half", path)
	refuse(t, host.StoreDescriptor(watchdog.DescriptorWord{}), "want the dnp half")
	refuse(t, dnp.StoreHost(watchdog.HostWord{}), "want the host half")
	refuse(t, ro.StoreHost(watchdog.HostWord{}), "read-only")
	refuse(t, ro.CountDoorbell(), "read-only")
	refuse(t, host.SetEpoch(fault.HalfDNP, 1), "want the dnp half")
	refuse(t, host.SetLinkDetail(grid.XPlus, 1), "want the dnp half", "X+")
	refuse(t, host.Store(watchdog.AddrTemperature, 1), "want the dnp half")
	_, _, err = dnp.TakeDNP()
	refuse(t, err, "want the host half")
	_, _, err = ro.TakeHost()
	refuse(t, err, "want the dnp half")
}

func TestBadValuesRefused(t *testing.T) {
	host, dnp, path := openBoth(t)
	refuse(t, dnp.StoreDNP(watchdog.DNPWord{Power: 3}), "Power", "3 (11)", "0x00000ec0")
	refuse(t, host.Store(watchdog.AddrHostWatchdog, 0x200), "0x00000ec4", "0x000001ff")
	refuse(t, dnp.Store(0x10, 1), "0x00000010", "no such address")
	refuse(t, Poke(path, 0x10, 1), "0x00000010", path)
	_, err := dnp.Load(0x10)
	refuse(t, err, "no such address")
	refuse(t, dnp.SetSensor(fault.ComponentMemory, 1), "memory", "want temperature")
	_, err = Open(path, 0)
	refuse(t, err, "half is 0")
}

func TestForeignFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	long, other := filepath.Join(dir, "long"), filepath.Join(dir, "other")
	must(t, os.WriteFile(long, make([]byte, Size+1), 0o600))
	foreign := make([]byte, Size)
	foreign[pageSize] = 'x'
	must(t, os.WriteFile(other, foreign, 0o600))
	_, err := Open(long, fault.HalfHost)
	refuse(t, err, long, "8193 bytes", "want 8192")
	_, err = Open(other, fault.HalfHost)
	refuse(t, err, other, "magic")
	_, err = OpenReadOnly(filepath.Join(dir, "absent"))
	if !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent file: %v", err)
	}
	_, err = Open(filepath.Join(dir, "no", "dir"), fault.HalfHost)
	refuse(t, err, filepath.Join(dir, "no", "dir"))
	must(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	_, err = OpenReadOnly(filepath.Join(dir, "d"))
	refuse(t, err, "regular file")
	// The refused opens released their locks.
	must(t, os.Remove(other))
	mustOpen(t, other, fault.HalfHost)
}

// TestSymbolicLinksRefused: users with write access to the state directory must not choose the files that the agent,
// running as root, writes to.
func TestSymbolicLinksRefused(t *testing.T) {
	for _, name := range []string{"regs", "regs.host"} {
		dir := t.TempDir()
		victim := filepath.Join(dir, "victim")
		must(t, os.WriteFile(victim, []byte("precious"), 0o600))
		must(t, os.Symlink(victim, filepath.Join(dir, name)))
		f, err := Open(filepath.Join(dir, "regs"), fault.HalfHost)
		refuse(t, err, name, "too many levels of symbolic links")
		if err == nil {
			must(t, f.Close())
		}
		if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
			t.Errorf("by %s the agent wrote into another file: %q, %v", name, b, err)
		}
	}
}

func TestPokeReadsAsOwner(t *testing.T) {
	host, dnp, path := openBoth(t)
	must(t, dnp.StoreDNP(watchdog.DNPWord{}))
	want := watchdog.DNPWord{Valid: true, Temperature: watchdog.HealthBroken}
	must(t, Poke(path, watchdog.AddrDNPWatchdog, want.Encode()))
	if w, s, err := host.TakeDNP(); err != nil || !s.Valid || w != want {
		t.Errorf("%+v %+v %v", w, s, err)
	}
	must(t, Poke(path, watchdog.AddrHostWatchdog, 0x14)) // not valid
	if w, s, err := dnp.TakeHost(); err != nil || s.Valid || w.Memory != watchdog.HealthBroken || w.ServiceNetwork != watchdog.HealthBroken {
		t.Errorf("%+v %+v %v", w, s, err)
	}
	must(t, Poke(path, watchdog.AddrDNPWatchdog, 0x181)) // 11: undefined, though properly guarded
	_, s, err := host.TakeDNP()
	if !s.Corrupt || !errors.Is(err, ErrCorrupt) || host.Corrupt() != 1 {
		t.Errorf("%+v %v", s, err)
	}
	refuse(t, err, "DNP core", "3 (11)")
	if _, raw, err := host.LoadDNP(); raw&^1 != 0x180 || !errors.Is(err, ErrCorrupt) {
		t.Errorf("0x%x %v", raw, err)
	}
	refuse(t, Poke(filepath.Join(t.TempDir(), "none"), watchdog.AddrDNPWatchdog, 1), "none", "no such file")
}

func TestRawWriteIsCorruptUntilOwnerWrites(t *testing.T) {
	host, dnp, path := openBoth(t)
	must(t, dnp.StoreDNP(watchdog.DNPWord{}))
	raw, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer func() { must(t, raw.Close()) }()
	word := watchdog.DNPWord{Valid: true}
	word.Links[0] = watchdog.HealthBroken
	_, err = raw.WriteAt(binary.LittleEndian.AppendUint32(nil, word.Encode()), int64(watchdog.AddrDNPWatchdog))
	must(t, err)
	w, s, err := host.TakeDNP()
	if w != (watchdog.DNPWord{}) || s != (watchdog.Sample{Corrupt: true}) || !errors.Is(err, ErrCorrupt) || host.Corrupt() != 1 {
		t.Errorf("%+v %+v %v", w, s, err)
	}
	refuse(t, err, "register invalid", "0x0ec0", path)
	if _, v, err := host.LoadDNP(); v != word.Encode() || !errors.Is(err, ErrCorrupt) {
		t.Errorf("load 0x%x %v", v, err)
	}
	must(t, dnp.StoreDNP(watchdog.DNPWord{}))
	if _, s, err := host.TakeDNP(); !s.Valid || err != nil {
		t.Errorf("after the owner's write: %+v %v", s, err)
	}
}

// TestFlipsInFile repeats the flips through the mapped file, for one word.
func TestFlipsInFile(t *testing.T) {
	host, dnp, _ := openBoth(t)
	must(t, dnp.StoreDNP(watchdog.DNPWord{}))
	base := dnp.state(dnpCell)
	for a := range cellBits {
		for b := a; b < cellBits; b += 1 + a%7 { // not all: the exhaustive test needs no file
			s := base.flip(a)
			if b != a {
				s = s.flip(b)
			}
			for _, w := range []write{{partWord, uint64(s.word)}, {partA, uint64(s.a)}, {partB, uint64(s.b)}} {
				dnp.write(dnpCell, w)
			}
			w, sample, err := host.TakeDNP()
			w.Valid = false
			if w != (watchdog.DNPWord{}) || sample.Corrupt != errors.Is(err, ErrCorrupt) {
				t.Fatalf("bits %d and %d: %+v %+v %v", a, b, w, sample, err)
			}
		}
	}
}

func TestEveryRegisterStoresAndLoads(t *testing.T) {
	host, dnp, _ := openBoth(t)
	for i, r := range watchdog.Registers() {
		f := dnp
		if r.Owner == fault.HalfHost {
			f = host
		}
		v := uint32(i+1) & r.Mask &^ 2 // no 11 in a health field
		must(t, f.Store(r.Addr, v))
		if got, err := host.Load(r.Addr); err != nil || got != v {
			t.Errorf("%s: 0x%x, %v; want 0x%x", r.Addr, got, err, v)
		}
	}
}

func TestExtensionWords(t *testing.T) {
	host, dnp, _ := openBoth(t)
	for _, d := range grid.Directions() {
		if host.LinkDetail(d)|host.NeighbourHost(d) != 0 {
			t.Errorf("%s: a new file has details", d)
		}
		must(t, dnp.SetLinkDetail(d, 0xdead0000|uint32(d)))
		must(t, dnp.SetNeighbourHost(d, 0xffff0000|uint32(d)))
		if peer, err := host.LoadPeer(d); err != nil || peer != 0 {
			t.Errorf("%s: a new file has the mark 0x%x of a peer, %v", d, peer, err)
		}
		must(t, dnp.SetPeer(d, 0xcafe0000|uint32(d)))
	}
	for _, d := range grid.Directions() {
		if host.LinkDetail(d) != 0xdead0000|uint32(d) || host.NeighbourHost(d) != 0xffff0000|uint32(d) {
			t.Errorf("%s: 0x%x 0x%x", d, host.LinkDetail(d), host.NeighbourHost(d))
		}
		if peer, err := host.LoadPeer(d); err != nil || peer != 0xcafe0000|uint32(d) {
			t.Errorf("%s: the mark 0x%x of a peer, %v", d, peer, err)
		}
	}
	must(t, dnp.SetSensor(fault.ComponentTemperature, -12_345))
	if v, err := host.Sensor(fault.ComponentTemperature); err != nil || v != -12_345 {
		t.Errorf("%d %v", v, err)
	}
	for range 3 {
		must(t, host.CountDoorbell())
	}
	if dnp.Doorbells(fault.HalfHost) != 3 || dnp.Doorbells(fault.HalfDNP) != 0 || dnp.Doorbells(0) != 0 {
		t.Error("doorbells")
	}
	counters := [NumCounters]uint32{0: 1, 31: 1 << 31}
	must(t, dnp.SetCounters(counters))
	if host.Counters() != counters || host.SetCounters(counters) == nil {
		t.Errorf("counters %v, and the host half may write them", host.Counters())
	}
	// A flipped detail reads as absent, and is counted.
	dnp.write(extCell(extLinkDetail), write{partWord, 5})
	if host.LinkDetail(grid.XPlus) != 0 || host.Corrupt() != 1 {
		t.Error("a detail without a guard was believed")
	}
}

func TestEpochs(t *testing.T) {
	host, dnp, _ := openBoth(t)
	if host.Epoch(fault.HalfDNP) != 0 || host.Epoch(0) != 0 {
		t.Error("a new file has an epoch")
	}
	const big = fault.Epoch(1<<40 + 3)
	must(t, dnp.SetEpoch(fault.HalfDNP, big))
	must(t, host.SetEpoch(fault.HalfHost, 2))
	if dnp.Epoch(fault.HalfHost) != 2 || host.Epoch(fault.HalfDNP) != big {
		t.Error("epochs")
	}
	// One copy damaged in any two bits is masked by the other.
	for a := range 128 {
		for b := a + 1; b < 128; b++ {
			for copyNo := range 2 {
				v, c := dnp.epochCopy(fault.HalfDNP, copyNo)
				wasV, wasC := v.load(), c.load()
				for _, bit := range []int{a, b} {
					if bit < 64 {
						v.store(v.load() ^ 1<<bit)
					} else {
						c.store(c.load() ^ 1<<(bit-64))
					}
				}
				if got := host.Epoch(fault.HalfDNP); got != big {
					t.Fatalf("copy %d, bits %d and %d: epoch %d", copyNo, a, b, got)
				}
				v.store(wasV)
				c.store(wasC)
			}
		}
	}
}

// TestEachStoreChangesProgressNumber: each store of a half's word changes its number; stores of the other half and of other words do not.
func TestEachStoreChangesProgressNumber(t *testing.T) {
	path := filepath.Join(t.TempDir(), "registers")
	host, dnp := mustOpen(t, path, fault.HalfHost), mustOpen(t, path, fault.HalfDNP)
	watcher, err := OpenReadOnly(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watcher.Close() }()
	moved := func(half fault.Half, do func() error) bool {
		t.Helper()
		before, err := watcher.Progress(half)
		if err != nil {
			t.Fatal(err)
		}
		if err := do(); err != nil {
			t.Fatal(err)
		}
		after, _ := watcher.Progress(half)
		return after != before
	}
	storeHost := func() error { return host.StoreHost(watchdog.HostWord{}) }
	storeDNP := func() error { return dnp.StoreDNP(watchdog.DNPWord{}) }
	for range 3 {
		if !moved(fault.HalfHost, storeHost) || !moved(fault.HalfDNP, storeDNP) {
			t.Error("a store does not show")
		}
		if moved(fault.HalfHost, storeDNP) || moved(fault.HalfDNP, storeHost) {
			t.Error("the other half's store shows")
		}
		if moved(fault.HalfHost, func() error { _, _, err := dnp.TakeHost(); return err }) ||
			moved(fault.HalfDNP, func() error { return dnp.Store(watchdog.AddrMaxHops, 7) }) {
			t.Error("what is no store of the word shows")
		}
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := watcher.Progress(fault.HalfDNP); !errors.Is(err, ErrFault) {
		t.Errorf("truncated: %v", err)
	}
	if _, err := watcher.Progress(0); err == nil {
		t.Error("no half has progress")
	}
}

// TestTruncatedFileGivesErrorNotCrash: the SIGBUS for an access to a truncated file becomes an error and does not kill the process.
func TestTruncatedFileGivesErrorNotCrash(t *testing.T) {
	for _, size := range []int64{0, pageSize} {
		host, dnp, path := openBoth(t)
		must(t, dnp.StoreDNP(watchdog.DNPWord{}))
		must(t, os.Truncate(path, size))
		_, s, err := host.TakeDNP()
		if !errors.Is(err, ErrFault) || s.Valid || s.Corrupt {
			t.Errorf("truncated to %d: %+v %v", size, s, err)
		}
		refuse(t, err, "truncated", path)
		if err := dnp.StoreDNP(watchdog.DNPWord{}); !errors.Is(err, ErrFault) {
			t.Errorf("truncated to %d: store %v", size, err)
		}
		if dnp.LinkDetail(grid.XPlus) != 0 || dnp.Epoch(fault.HalfHost) != 0 || dnp.Doorbells(fault.HalfHost) != 0 {
			t.Error("values out of nowhere")
		}
		refuse(t, host.Check(), "bytes long", "want 8192")
		if !errors.Is(host.Check(), ErrFault) {
			t.Error("Check does not say ErrFault")
		}
		_, err = OpenReadOnly(path)
		refuse(t, err, "want 8192")

		// A half that opens it again restores the file in place, for the other one as well.
		must(t, dnp.Close())
		dnp = mustOpen(t, path, fault.HalfDNP)
		must(t, dnp.StoreDNP(watchdog.DNPWord{}))
		if _, s, err := host.TakeDNP(); err != nil || !s.Valid {
			t.Errorf("made whole: %+v %v", s, err)
		}
		must(t, host.Check())
	}
}

func TestUnlinkedOrReplaced(t *testing.T) {
	host, dnp, path := openBoth(t)
	must(t, os.Rename(path, path+".old"))
	if err := host.Check(); !errors.Is(err, ErrReplaced) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unlinked: %v", err)
	}
	must(t, dnp.StoreDNP(watchdog.DNPWord{})) // into the old file, which both still map
	must(t, os.WriteFile(path, make([]byte, Size), 0o600))
	if err := host.Check(); !errors.Is(err, ErrReplaced) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("replaced: %v", err)
	}
	// Closing and opening repairs it.
	must(t, host.Close())
	host = mustOpen(t, path, fault.HalfHost)
	must(t, host.Check())
}

// TestFileSystemFull: on a full file system the file cannot be opened, and Open fails at once instead of faulting
// later.
func TestFileSystemFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4096"); err != nil {
		requirements.Missing(t, "cannot mount a small tmpfs: %v", err)
	}
	defer func() { must(t, unix.Unmount(dir, 0)) }()
	_, err := Open(filepath.Join(dir, "registers"), fault.HalfHost)
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v, want no space", err)
	}
	refuse(t, err, "allocate 8192 bytes")
}

func BenchmarkStoreDNP(b *testing.B) {
	_, dnp, _ := openBoth(b)
	b.ReportAllocs()
	for b.Loop() {
		must(b, dnp.StoreDNP(watchdog.DNPWord{}))
	}
}

func BenchmarkTakeDNP(b *testing.B) {
	host, dnp, _ := openBoth(b)
	must(b, dnp.StoreDNP(watchdog.DNPWord{}))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := host.TakeDNP(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStoreAndTake measures one period of both halves: two stores, two takes.
func BenchmarkStoreAndTake(b *testing.B) {
	host, dnp, _ := openBoth(b)
	b.ReportAllocs()
	for b.Loop() {
		must(b, dnp.StoreDNP(watchdog.DNPWord{}))
		must(b, host.StoreHost(watchdog.HostWord{}))
		if _, s, err := host.TakeDNP(); err != nil || !s.Valid {
			b.Fatal(s, err)
		}
		if _, s, err := dnp.TakeHost(); err != nil || !s.Valid {
			b.Fatal(s, err)
		}
	}
}
