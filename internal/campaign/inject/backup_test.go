package inject

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// copyWorld is the copy of one half at rest, as a restarting half finds it.
type copyWorld struct {
	t     *testing.T
	path  string
	id    storage.CopyIdentity
	mem   []byte // the file, mapped here as well: faults are applied to it
	whole []byte // the correct content
	truth held
	gen   int
	stuck func()
	areas []storage.CopyArea
	cells int // cells lost in both copies, with the loss detected
}

// held is the content of a copy.
type held struct {
	Numbers   storage.Numbers
	Paths     string
	Counters  [grid.NumDirections]torus.LinkSnapshot
	Sessions  [grid.NumDirections]storage.Session
	Hops      [grid.NumDirections]string
	Relay     [storage.NumRelay]string
	Baselines string
	Sensors   string
	Reports   []storage.CopiedReport
}

func newCopyWorld(t *testing.T, half fault.Half) *copyWorld {
	t.Helper()
	w := &copyWorld{t: t, path: filepath.Join(t.TempDir(), half.String()+".backup"),
		id: storage.CopyIdentity{Node: "n0-0-0", Half: half, Boot: [16]byte{1, 2, 3}}, areas: storage.CopyAreas(half)}
	f := w.open()
	w.store(f)
	w.close(f)
	w.remap()
	t.Cleanup(func() { _ = unix.Munmap(w.mem) })
	w.whole = bytes.Clone(w.mem)
	return w
}

// remap maps the file that has the name now, because a half that starts cold creates a new one.
func (w *copyWorld) remap() {
	w.t.Helper()
	if w.mem != nil {
		_ = unix.Munmap(w.mem)
	}
	raw, err := os.OpenFile(w.path, os.O_RDWR, 0)
	if err != nil {
		w.t.Fatal(err)
	}
	defer raw.Close()
	if w.mem, err = unix.Mmap(int(raw.Fd()), 0, storage.CopySize(w.id.Half), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		w.t.Fatal(err)
	}
}

func (w *copyWorld) open() *storage.CopyFile {
	f, err := storage.OpenCopy(w.path, w.id)
	if err != nil {
		w.t.Fatal(err)
	}
	return f
}

func (w *copyWorld) close(f *storage.CopyFile) {
	if err := f.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// again resets stuck bits to their stuck value.
func (w *copyWorld) again() {
	if w.stuck != nil {
		w.stuck()
	}
}

// store stores new values everywhere, cell by cell, and records them.
func (w *copyWorld) store(f *storage.CopyFile) {
	w.gen++
	g := w.gen
	do := func(err error) {
		if err != nil {
			w.t.Fatal(err)
		}
		w.again()
	}
	do(f.StoreNumbers(storage.Numbers{OutboxSnapshot: servicenet.OutboxSnapshot{Epoch: 7, Seq: fault.Seq(1000 + g),
		Exchange: uint64(g)}, List: 3}))
	if w.id.Half == fault.HalfHost {
		do(f.StorePathSessions(bytes.Repeat([]byte{byte(g), 5}, 50)))
	}
	do(f.StoreBaselines(bytes.Repeat([]byte{byte(g), 2, 3}, 40)))
	do(f.StoreSensors(bytes.Repeat([]byte{byte(g), 4}, 30)))
	for i := range 4 {
		do(f.PutReport(storage.CopiedReport{Epoch: 7, Seq: fault.Seq(10 + i), At: int64(g),
			Payload: bytes.Repeat([]byte{byte(g + i), 7}, 30+20*i)}))
	}
	if w.id.Half == fault.HalfDNP {
		for i, d := range grid.Directions() {
			do(f.StoreSession(d, storage.Session{ID: uint32(i + 1), Tx: [16]byte{1, byte(i)}, Rx: [16]byte{2, byte(i)}}))
			c := torus.LinkSnapshot{TxSession: uint32(i + 1), TxSeq: 1<<33 + uint64(g), Acked: 1 << 32, Started: true, RxSession: 9,
				Next: 10, PeerEpoch: 11, High: 1<<35 + uint64(g), Replay: 0xffff_0000_1111_0001, Rx: torus.LinkNormal, Tx: torus.LinkSick}
			do(f.StoreCounters(d, &c))
			do(f.StoreHop(d, bytes.Repeat([]byte{byte(g), byte(i)}, 20)))
		}
		for i := range 4 {
			do(f.StoreRelay(i, bytes.Repeat([]byte{byte(g), byte(i)}, 60+40*i)))
		}
	}
	w.truth = w.read(f)
}

func (w *copyWorld) read(f *storage.CopyFile) held {
	var h held
	h.Numbers, _ = f.Numbers()
	h.Baselines, h.Sensors, h.Reports = string(f.Baselines()), string(f.Sensors()), f.Reports()
	if w.id.Half == fault.HalfHost {
		h.Paths = string(f.PathSessions())
	}
	if w.id.Half == fault.HalfDNP {
		for i, d := range grid.Directions() {
			h.Counters[i], h.Sessions[i], _ = f.Link(d)
			h.Hops[i] = string(f.Hop(d))
		}
		for i := range h.Relay {
			h.Relay[i] = string(f.Relay(i))
		}
	}
	return h
}

// cellBit is a bit of the file.
type cellBit struct {
	area string
	copy int
	bit  int // index in the file
}

func (b cellBit) String() string {
	return fmt.Sprintf("%s, copy %c, bit %d", b.area, 'A'+b.copy, b.bit)
}

// bits returns the relevant bits of both copies; for relay and report slots only those in use.
func (w *copyWorld) bits() []cellBit {
	var out []cellBit
	for _, a := range w.areas {
		for i, at := range a.Offsets {
			for b := range storage.UsedBytes(w.whole[at:at+a.Size]) * 8 {
				out = append(out, cellBit{a.Name, i, at*8 + b})
			}
		}
	}
	return out
}

// try starts a half with a damaged copy and, if the damage is permanent, stores and starts again. It compares the state
// that the half continues from with the truth.
func (w *copyWorld) try(bits []cellBit, stuck int) sample {
	begin := time.Now()
	s := sample{what: fmt.Sprint(bits), touched: true, category: catControl}
	apply := func() {
		for _, b := range bits {
			m := byte(1) << (b.bit % 8)
			if was := w.mem[b.bit/8]&m != 0; stuck < 0 || was != (stuck == 1) {
				w.mem[b.bit/8] ^= m
				s.applied = true
			}
		}
	}
	apply()
	if stuck >= 0 {
		w.stuck = apply
		s.what += " stuck at " + strconv.Itoa(stuck)
	}
	if !s.applied {
		w.stuck = nil
		return s
	}
	w.start(&s, begin)
	if stuck < 0 && !s.prober && w.intact(bits) {
		s.healed, s.recover = true, time.Since(begin)
		return s
	}
	if stuck >= 0 {
		f := w.open()
		if f.Cold() != "" {
			w.remap()
		}
		w.again()
		w.store(f)
		w.close(f)
		w.again()
		w.start(&s, begin)
		w.stuck = nil
	}
	// Healed means that the next but one start finds a correct copy, after any fault.
	f := w.open()
	w.store(f)
	w.close(f)
	w.remap()
	g := w.open()
	s.healed = reflect.DeepEqual(w.read(g), w.truth) && g.Cold() == "" && g.Stats().Lost == 0
	w.close(g)
	s.recover = time.Since(begin)
	return s
}

// intact reports whether the cells of some bits are equal in both copies.
func (w *copyWorld) intact(bits []cellBit) bool {
	for _, a := range w.areas {
		for _, b := range bits {
			if b.area == a.Name && !bytes.Equal(w.mem[a.Offsets[0]:a.Offsets[0]+a.Size], w.mem[a.Offsets[1]:a.Offsets[1]+a.Size]) {
				return false
			}
		}
	}
	return true
}

// start simulates the start of a half: it records whether the half found damage, and the state that it continues from.
func (w *copyWorld) start(s *sample, begin time.Time) {
	f := w.open()
	defer w.close(f)
	if f.Cold() != "" {
		w.remap()
	}
	st := f.Stats()
	found := st.Mended > 0 || st.Lost > 0 || f.Cold() != ""
	if found && s.ours == "" {
		s.ours, s.detect = byGuard, time.Since(begin)
	}
	got := w.read(f)
	if reflect.DeepEqual(got, w.truth) && f.Cold() == "" {
		return
	}
	s.prober = true
	if st.Lost == 0 && f.Cold() == "" {
		s.ours = "" // it continues from a wrong state without noticing
	}
	w.cells += st.Lost
	s.what += ": goes on from something else"
	if why := f.Cold(); why != "" {
		s.what += ": " + why
	}
}

func TestBackupPage(t *testing.T) {
	every, pairs := 60*slower+1, 200/slower
	if *full {
		every, pairs = 1, 6000
	}
	for _, x := range []struct {
		name  string
		stuck int
	}{{"flips", -1}, {"stuck at 0", 0}, {"stuck at 1", 1}} {
		t.Run(strings.ReplaceAll(x.name, " ", "-"), func(t *testing.T) {
			runClass(t, "backup page, "+x.name, func(c *class) {
				for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
					w := newCopyWorld(t, half)
					bits := w.bits()
					r := rand.New(rand.NewPCG(*seed, uint64(x.stuck+10)))
					for i := r.IntN(every); i < len(bits); i += every {
						c.add(w.try(bits[i:i+1], x.stuck))
					}
				}
			})
		})
	}
	t.Run("double-flips", func(t *testing.T) {
		runClass(t, "backup page, double flips", func(c *class) {
			for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
				w := newCopyWorld(t, half)
				bits := w.bits()
				by := map[string][]cellBit{}
				for _, b := range bits {
					by[b.area] = append(by[b.area], b)
				}
				r := rand.New(rand.NewPCG(*seed, 20))
				for i := range pairs / 2 {
					a := bits[r.IntN(len(bits))]
					pool := bits
					if i%2 == 0 {
						pool = by[a.area] // from one cell: the other copy may not help
					}
					if b := pool[r.IntN(len(pool))]; b != a {
						c.add(w.try([]cellBit{a, b}, -1))
					}
				}
				c.notes = append(c.notes, fmt.Sprintf("%s half: %d cells were lost in both copies; each loss was found, and what depends on it "+
					"begins cold", half, w.cells))
			}
		})
	})
}
