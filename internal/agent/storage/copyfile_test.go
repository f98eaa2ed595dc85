package storage

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func identity(half fault.Half) CopyIdentity {
	return CopyIdentity{Node: "n1", Half: half, Boot: [16]byte{1, 2, 3}, Place: "0,1,2"}
}

func numbers(e fault.Epoch, seq fault.Seq) Numbers {
	return Numbers{servicenet.OutboxSnapshot{Epoch: e, Seq: seq, Exchange: 5}, 6, 7}
}

func pathIn(t testing.TB) string { return filepath.Join(t.TempDir(), "dnp.backup") }

// openedCopy opens a copy, and fails the test on an error.
func openedCopy(t testing.TB, path string, half fault.Half) *CopyFile {
	t.Helper()
	f, err := OpenCopy(path, identity(half))
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

// everything is a copy's content, for comparison.
type everything struct {
	Outbox    Numbers
	Paths     string
	Counters  [grid.NumDirections]torus.LinkSnapshot
	Sessions  [grid.NumDirections]Session
	Hops      [grid.NumDirections]string
	Relay     [NumRelay]string
	Express   [NumExpress]string
	Seen      string
	Baselines string
	Sensors   string
	Reports   []CopiedReport
}

func read(f *CopyFile) everything {
	var e everything
	e.Outbox, _ = f.Numbers()
	e.Baselines, e.Sensors, e.Reports = string(f.Baselines()), string(f.Sensors()), f.Reports()
	if f.id.Half != fault.HalfDNP {
		e.Paths = string(f.PathSessions())
		return e
	}
	for i, d := range grid.Directions() {
		e.Counters[i], e.Sessions[i], _ = f.Link(d)
		e.Hops[i] = string(f.Hop(d))
	}
	for i := range e.Relay {
		e.Relay[i] = string(f.Relay(i))
	}
	for i := range e.Express {
		e.Express[i] = string(f.Express(i))
	}
	e.Seen = string(f.ExpressSeen())
	return e
}

// fill stores a value in every cell.
func fill(t testing.TB, f *CopyFile) everything {
	t.Helper()
	must(t, f.StoreNumbers(numbers(7, 1<<40)))
	must(t, f.StoreBaselines([]byte("baselines")))
	must(t, f.StoreSensors([]byte("sensors")))
	for i := range NumReports {
		must(t, f.PutReport(CopiedReport{Epoch: 7, Seq: fault.Seq(i + 1), At: int64(-i),
			Payload: bytes.Repeat([]byte{byte(i + 1)}, 1+i%MaxReport)}))
	}
	if f.id.Half == fault.HalfDNP {
		for i, d := range grid.Directions() {
			must(t, f.StoreSession(d, Session{uint32(i + 1), [16]byte{1}, [16]byte{2, byte(i)}}))
			c := snapshot(i)
			must(t, f.StoreCounters(d, &c))
			must(t, f.StoreHop(d, []byte{byte(i), 9}))
		}
		for i := range NumRelay {
			must(t, f.StoreRelay(i, bytes.Repeat([]byte{byte(i), 3}, 1+i*11)))
		}
		for i := range NumExpress {
			must(t, f.StoreExpress(i, bytes.Repeat([]byte{byte(i), 5}, 1+i*9)))
		}
		must(t, f.StoreExpressSeen([]byte("seen")))
	} else {
		must(t, f.StorePathSessions([]byte("sessions")))
	}
	return read(f)
}

func snapshot(i int) torus.LinkSnapshot {
	return torus.LinkSnapshot{
		TxSession: uint32(i + 1), TxSeq: 1<<33 + uint64(i), Acked: 1 << 32, Started: true, Awaiting: i%2 == 0,
		Peer: torus.PeerStatus{DNP: 1, Host: 3, HostDead: i%2 == 1, Hops: i%2 == 0, Express: i%3 == 0, Epoch: 4}, RxSession: 9, Next: 10,
		PeerEpoch: 11, High: 1 << 35, Replay: 0xffff_0000_1111_0001, Rx: torus.LinkNormal, Tx: torus.LinkSick, Silent: i%3 == 0,
		HeardAge: time.Duration(i),
	}
}

func TestReopenedCopyHasSameContent(t *testing.T) {
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		path := pathIn(t)
		f, err := OpenCopy(path, identity(half))
		must(t, err)
		if f.Cold() != "there was none" {
			t.Errorf("a new copy is cold for %q", f.Cold())
		}
		if _, ok := f.Numbers(); ok {
			t.Error("a new copy has an outbox")
		}
		want := fill(t, f)
		must(t, f.Close())
		must(t, f.Close())
		if err := f.StoreNumbers(Numbers{}); !errors.Is(err, ErrClosed) {
			t.Errorf("store after close: %v", err)
		}
		look, err := ReadCopy(path, identity(half))
		must(t, err)
		if got := read(look); !reflect.DeepEqual(got, want) {
			t.Errorf("looked at: %+v", got)
		}
		g := openedCopy(t, path, half)
		if got := read(g); g.Cold() != "" || !reflect.DeepEqual(got, want) || len(got.Reports) != NumReports {
			t.Errorf("%s half: %q\n got %+v\nwant %+v", half, g.Cold(), got, want)
		}
		if s := g.Stats(); s.Lost != 0 || s.Mended != 0 || s.Reports != NumReports {
			t.Errorf("%+v", s)
		}
	}
}

// Reports leave their slots for others, and the slots are found again by the next life.
func TestFreedReportSlotsAreReused(t *testing.T) {
	path := pathIn(t)
	f, err := OpenCopy(path, identity(fault.HalfHost))
	must(t, err)
	fill(t, f)
	id := func(seq fault.Seq) fault.ReportID { return fault.ReportID{Epoch: 7, Seq: seq} }
	must(t, f.PutReport(CopiedReport{Epoch: 8, Seq: 1, Payload: []byte("no room")}))
	must(t, f.FreeReports([]fault.ReportID{id(3), id(5), id(5000)}))
	must(t, f.PutReport(CopiedReport{Epoch: 8, Seq: 2, Payload: []byte("room")}))
	must(t, f.PutReport(CopiedReport{Epoch: 7, Seq: 1, Payload: []byte("in its own slot")}))
	must(t, f.PutReport(CopiedReport{Epoch: 8, Seq: 3, Payload: make([]byte, MaxReport+1)}))
	if s := f.Stats(); s.NoRoom != 2 || s.Reports != NumReports-1 {
		t.Errorf("%+v", s)
	}
	must(t, f.Close())
	f = openedCopy(t, path, fault.HalfHost)
	r := f.Reports()
	last := r[len(r)-1]
	if len(r) != NumReports-1 || string(r[0].Payload) != "in its own slot" || r[2].Seq != 4 || last.Epoch != 8 ||
		string(last.Payload) != "room" {
		t.Errorf("%d reports, %+v, %+v, %+v", len(r), r[0], r[2], last)
	}
	must(t, f.PutReport(CopiedReport{Epoch: 8, Seq: 4, Payload: []byte("room")}))
	if s := f.Stats(); s.NoRoom != 0 || s.Reports != NumReports {
		t.Errorf("%+v", s)
	}
}

// Flips every bit of the file in turn: the other copy masks each flip, or the bit carries no data.
func TestEveryBitFlipped(t *testing.T) {
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		path := pathIn(t)
		f := openedCopy(t, path, half)
		fill(t, f)
		a, b := f.mem[:f.lay.half], f.mem[f.lay.half:]
		masked, every := 0, 1
		if testing.Short() {
			every = 13 // bits: every place in a byte is among them
		}
		for _, c := range f.lay.all { // bytes outside cells are not read
			ca, cb := c.in(a), c.in(b)
			want, _, _ := c.choose(ca, cb)
			want = bytes.Clone(want)
			if len(want) == 0 {
				t.Fatalf("cell %d is not filled", c.number)
			}
			for _, in := range [][]byte{ca, cb} {
				for bit := 0; bit < 8*c.size; bit += every {
					in[bit/8] ^= 1 << (bit % 8)
					got, mendA, mendB := c.choose(ca, cb)
					if !bytes.Equal(got, want) {
						t.Fatalf("%s half, cell %d, bit %d: %x, want %x", half, c.number, bit, got, want)
					}
					if mendA || mendB {
						masked++
					}
					in[bit/8] ^= 1 << (bit % 8)
				}
			}
		}
		t.Logf("%s half: %d flips were masked by the other copy", half, masked)
		if masked < 8*f.lay.half/4/every {
			t.Error("the test tests nothing")
		}
	}
}

// After one or two flips anywhere in the file, the next incarnation has the stored data, begins cold, or lacks cells
// that it knows to be lost. There is no other outcome.
func TestFlipsInFile(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	path := pathIn(t)
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(t, err)
	want := fill(t, f)
	must(t, f.Close())
	whole, err := os.ReadFile(path)
	must(t, err)
	rounds := 400
	if testing.Short() {
		rounds = 40
	}
	cold, lost, mended := 0, 0, 0
	for i := range rounds {
		b := bytes.Clone(whole)
		bits := []int{rng.IntN(8 * len(b))}
		switch i % 4 {
		case 1: // the same bit of both copies
			bits[0] = rng.IntN(4 * len(b))
			bits = append(bits, bits[0]+4*len(b))
		case 2: // the head
			bits[0] = rng.IntN(8 * f.lay.head.size)
			bits = append(bits, rng.IntN(8*f.lay.head.size)+4*len(b))
		case 3:
			bits = append(bits, rng.IntN(8*len(b)))
		}
		for _, bit := range bits {
			b[bit/8] ^= 1 << (bit % 8)
		}
		overwrite(t, path, b)
		g, err := OpenCopy(path, identity(fault.HalfDNP))
		must(t, err)
		got, s := read(g), g.Stats()
		switch {
		case g.Cold() != "":
			cold++
			if !reflect.DeepEqual(got, everything{}) {
				t.Fatalf("bits %d: cold, but %+v", bits, got)
			}
		case s.Lost > 0:
			lost++
			if s.Lost > 1 || !without(got, want) {
				t.Fatalf("bits %d: %d lost:\n got %+v\nwant %+v", bits, s.Lost, got, want)
			}
		case !reflect.DeepEqual(got, want):
			t.Fatalf("bits %d:\n got %+v\nwant %+v", bits, got, want)
		}
		mended += s.Mended
		must(t, g.Close())
		if g.Cold() != "" { // it is another file now
			g = openedCopy(t, path, fault.HalfDNP)
			must(t, g.GoCold("again"))
			fill(t, g)
			must(t, g.Close())
			whole, err = os.ReadFile(path)
			must(t, err)
		}
	}
	t.Logf("%d cold, %d lost a cell, %d copies mended", cold, lost, mended)
	if cold == 0 || lost == 0 || mended == 0 {
		t.Error("the test tests nothing")
	}
}

// without reports whether got equals want except for the content of one cell.
func without(got, want everything) bool {
	differ := 0
	note := func(same, gone bool) bool {
		if !same {
			differ++
		}
		return same || gone
	}
	ok := note(got.Outbox == want.Outbox, got.Outbox == Numbers{}) && note(got.Baselines == want.Baselines, got.Baselines == "") &&
		note(got.Sensors == want.Sensors, got.Sensors == "")
	for i := range want.Counters {
		noLink, noSession := got.Counters[i] == torus.LinkSnapshot{}, got.Sessions[i] == Session{}
		sameC, sameS := got.Counters[i] == want.Counters[i], got.Sessions[i] == want.Sessions[i]
		ok = ok && note(sameC && sameS, noSession && (noLink || sameC)) && note(got.Hops[i] == want.Hops[i], got.Hops[i] == "")
	}
	for i := range want.Relay {
		ok = ok && note(got.Relay[i] == want.Relay[i], got.Relay[i] == "")
	}
	for i := range want.Express {
		ok = ok && note(got.Express[i] == want.Express[i], got.Express[i] == "")
	}
	ok = ok && note(got.Seen == want.Seen, got.Seen == "")
	j := 0
	for _, r := range want.Reports {
		if j < len(got.Reports) && reflect.DeepEqual(got.Reports[j], r) {
			j++
		} else {
			differ++
		}
	}
	return ok && j == len(got.Reports) && differ == 1
}

// overwrite changes the file's content in place.
func overwrite(t *testing.T, path string, b []byte) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = file.WriteAt(b, 0)
	must(t, errors.Join(err, file.Close()))
}

// A flip is repaired within a second, in either place of the file or in the half's own memory. So successive flips
// never add up.
func TestFlipsAreMended(t *testing.T) {
	path := pathIn(t)
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(t, err)
	want := fill(t, f)
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 600 {
		c := f.lay.all[rng.IntN(len(f.lay.all))]
		u, _ := c.used(c.in(f.cells))
		bit := rng.IntN(8 * len(u))
		in := [][]byte{f.mem, f.mem[f.lay.half:], f.cells}[i%3]
		c.in(in)[bit/8] ^= 1 << (bit % 8)
		before := f.Stats().Mended
		if made, err := f.Maintain(); made || err != nil {
			t.Fatal(made, err)
		}
		if n := f.Stats().Mended; n != before+1 {
			t.Fatalf("flip %d, cell %d, bit %d: %d mended", i, c.number, bit, n-before)
		}
	}
	if got := read(f); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v", got)
	}
	must(t, f.Close())
	g := openedCopy(t, path, fault.HalfDNP)
	if got := read(g); !reflect.DeepEqual(got, want) || g.Stats().Mended+g.Stats().Lost != 0 {
		t.Errorf("%+v, %+v", g.Stats(), got)
	}
}

// A session is of use only with the counters that are its own: else a number could come twice under one key.
func TestSessionWithoutItsCounters(t *testing.T) {
	f := openedCopy(t, pathIn(t), fault.HalfDNP)
	must(t, f.StoreSession(grid.XPlus, Session{ID: 5}))
	if _, _, ok := f.Link(grid.XPlus); ok {
		t.Error("a session without counters")
	}
	must(t, f.StoreCounters(grid.XPlus, &torus.LinkSnapshot{TxSession: 4, TxSeq: 9}))
	if c, s, ok := f.Link(grid.XPlus); !ok || c.TxSeq != 9 || s.ID != 0 {
		t.Errorf("%+v %+v %t", c, s, ok)
	}
	must(t, f.StoreCounters(grid.XPlus, &torus.LinkSnapshot{TxSession: 5}))
	if _, s, ok := f.Link(grid.XPlus); !ok || s.ID != 5 {
		t.Errorf("%+v %t", s, ok)
	}
}

func TestCopyOfOtherNodeIsRefused(t *testing.T) {
	path := pathIn(t)
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(t, err)
	fill(t, f)
	must(t, f.Close())
	otherBoot, otherNode := identity(fault.HalfDNP), identity(fault.HalfDNP)
	otherBoot.Boot[15]++
	otherNode.Node = "n2"
	for _, c := range []struct {
		id   CopyIdentity
		want string
	}{{otherBoot, "earlier boot"}, {otherNode, "dnp half of n1"}, {identity(fault.HalfHost), "no copy of this version"}} {
		if _, err := OpenCopyForDaemon(path, c.id); !errors.Is(err, ErrCold) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.id, err, c.want)
		}
	}
	b, err := os.ReadFile(path)
	must(t, err)
	must(t, os.Rename(path, path+".old"))
	must(t, os.WriteFile(path, b, 0o600))
	if _, err := OpenCopyForDaemon(path, identity(fault.HalfDNP)); !errors.Is(err, ErrCold) || !strings.Contains(err.Error(), "copied") {
		t.Errorf("a copy of the file: %v", err)
	}
	must(t, os.Rename(path+".old", path))
	g := openedCopy(t, path, fault.HalfDNP)
	if g.Cold() != "" {
		t.Errorf("the file itself: %s", g.Cold())
	}
}

// A half resumes only from a copy of its present place. A copy of an earlier version names no place, and is named when a
// half opens it.
func TestCopyOfFormerPlaceIsRefused(t *testing.T) {
	for _, half := range []fault.Half{fault.HalfHost, fault.HalfDNP} {
		path := pathIn(t)
		at := func(place string) CopyIdentity {
			id := identity(half)
			id.Place = place
			return id
		}
		open := func(place, cold, named string) {
			t.Helper()
			f, err := OpenCopy(path, at(place))
			must(t, err)
			defer func() { must(t, f.Close()) }()
			if got := f.Cold(); !strings.Contains(got, cold) || (got == "") != (cold == "") {
				t.Errorf("%s at %q: cold %q, want %q", half, place, got, cold)
			}
			must(t, f.StoreNumbers(numbers(7, 8)))
			if r, err := ReadCopy(path, at("")); err != nil || r.Place() != named {
				t.Errorf("%s at %q: the copy names %q, %v: want %q", half, place, r.Place(), err, named)
			}
		}
		open("", "there was none", "") // by an earlier version
		open("", "", "")
		open("1,0,0", "", "1,0,0")
		open("1,0,0", "", "1,0,0")
		open("", "", "1,0,0") // by an earlier version after a downgrade
		open("2,0,0", `of place "1,0,0": want 2,0,0`, "2,0,0")
		if _, err := OpenCopyForDaemon(path, at("1,0,0")); !errors.Is(err, ErrCold) {
			t.Errorf("%s for the daemon: %v", half, err)
		}
	}
}

func TestTimeSinceBootNeverFalls(t *testing.T) {
	if a, b := SinceBoot(), SinceBoot(); a <= 0 || b < a {
		t.Errorf("since boot %d, then %d", a, b)
	}
}

// One writer: the half while it lives, its daemon then, and the half again.
func TestCopyHasOneWriterAtATime(t *testing.T) {
	path := pathIn(t)
	if _, err := OpenCopyForDaemon(path, identity(fault.HalfDNP)); !errors.Is(err, ErrCold) {
		t.Errorf("no file: %v", err)
	}
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(t, err)
	fill(t, f)
	if _, err := OpenCopyForDaemon(path, identity(fault.HalfDNP)); !errors.Is(err, ErrInUse) {
		t.Errorf("beside the half: %v", err)
	}
	must(t, f.Close())
	d, err := OpenCopyForDaemon(path, identity(fault.HalfDNP))
	must(t, err)
	was, session, _ := d.Link(grid.XPlus)
	before := d.LinkAge(grid.XPlus)
	if before <= 0 || d.LinkAge(grid.XMinus) <= 0 || before > time.Minute {
		t.Errorf("stored %v ago", before)
	}
	for i := range uint64(3) {
		seq, c, err := d.TakeSeq(grid.XPlus)
		if err != nil || seq != was.TxSeq+1+i || c.TxSeq != seq || session.ID != c.TxSession {
			t.Errorf("%d %+v %v", seq, c, err)
		}
	}
	if age := d.SessionAge(grid.XPlus); age <= 0 || age > time.Minute || d.SessionAge(grid.XPlus) < age {
		t.Errorf("the session is %v old", age)
	}
	if age := d.LinkAge(grid.XPlus); age < before {
		t.Errorf("the daemon's sending makes the half seem alive: %v ago, before %v", age, before)
	}
	released := make(chan error)
	go func() { // the half waits for a daemon that is about to let go
		time.Sleep(20 * time.Millisecond)
		released <- d.Close()
	}()
	g := openedCopy(t, path, fault.HalfDNP)
	must(t, <-released)
	if c, _, _ := g.Link(grid.XPlus); g.Cold() != "" || c.TxSeq != was.TxSeq+3 {
		t.Errorf("%q, %d", g.Cold(), c.TxSeq)
	}
	// A process that does not release the lock keeps its file, and the half begins cold with another.
	h := openedCopy(t, path, fault.HalfDNP)
	if !strings.Contains(h.Cold(), ErrInUse.Error()) {
		t.Errorf("cold for %q", h.Cold())
	}
	must(t, h.StoreNumbers(numbers(9, 0)))
	if made, err := g.Maintain(); !made || err != nil { // it finds its file replaced, as it would by anybody
		t.Error(made, err)
	}
}

// A truncated, unlinked or replaced file causes an error and no SIGBUS. It is recreated with all data stored before
// and meanwhile.
func TestDamagedCopyFileIsRecreated(t *testing.T) {
	for name, take := range map[string]func(*testing.T, *CopyFile){
		"truncated": func(t *testing.T, f *CopyFile) { must(t, os.Truncate(f.path, 0)) },
		"cut short": func(t *testing.T, f *CopyFile) { must(t, os.Truncate(f.path, pageSize)) },
		"cut in B":  func(t *testing.T, f *CopyFile) { must(t, os.Truncate(f.path, int64(f.lay.half+pageSize))) },
		"unlinked":  func(t *testing.T, f *CopyFile) { must(t, os.Remove(f.path)) },
		"replaced": func(t *testing.T, f *CopyFile) {
			must(t, os.Remove(f.path))
			must(t, os.WriteFile(f.path, make([]byte, 2*f.lay.half), 0o600))
		},
		"a link": func(t *testing.T, f *CopyFile) {
			must(t, os.Remove(f.path))
			must(t, os.Symlink("/etc/passwd", f.path))
		},
	} {
		path := pathIn(t)
		f, err := OpenCopy(path, identity(fault.HalfDNP))
		must(t, err)
		want := fill(t, f)
		take(t, f)
		for i, d := range grid.Directions() {
			want.Counters[i].TxSeq += 5
			err := f.StoreCounters(d, &want.Counters[i])
			if strings.HasPrefix(name, "truncated") && err == nil {
				t.Errorf("%s: no error", name)
			}
		}
		_ = f.StoreRelay(NumRelay-1, []byte("meanwhile"))
		want.Relay[NumRelay-1] = "meanwhile"
		if made, err := f.Maintain(); !made || err != nil {
			t.Errorf("%s: made %t, %v", name, made, err)
		}
		if made, err := f.Maintain(); made || err != nil {
			t.Errorf("%s: made again: %t, %v", name, made, err)
		}
		must(t, f.Close())
		g := openedCopy(t, path, fault.HalfDNP)
		if got := read(g); g.Cold() != "" || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %q\n got %+v\nwant %+v", name, g.Cold(), got, want)
		}
	}
}

// A file that missed a store must not come back: its numbers are old.
func TestOldFileIsSpoilt(t *testing.T) {
	path := pathIn(t)
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(t, err)
	fill(t, f)
	must(t, os.Rename(path, path+".old"))
	if made, err := f.Maintain(); !made || err != nil {
		t.Fatal(made, err)
	}
	must(t, f.Close())
	must(t, os.Rename(path+".old", path))
	if _, err := OpenCopyForDaemon(path, identity(fault.HalfDNP)); !errors.Is(err, ErrCold) {
		t.Errorf("an old copy is believed: %v", err)
	}
}

// On a full file system there is no copy, which causes an error and nothing worse. The copy is made once there is
// room.
func TestFileSystemFull(t *testing.T) {
	dir := t.TempDir()
	requirements.SmallDisk(t, dir, 4<<20)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	path := filepath.Join(dir, "dnp.backup")
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("open on a full disk: %v", err)
	}
	if err := f.StoreNumbers(numbers(3, 4)); !errors.Is(err, ErrGone) {
		t.Errorf("store without a file: %v", err)
	}
	if made, err := f.Maintain(); made || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%t, %v", made, err)
	}
	if names, err := filepath.Glob(path + "*"); err != nil || len(names) != 0 {
		t.Errorf("left behind: %v, %v", names, err)
	}
	must(t, os.Remove(ballast))
	if made, err := f.Maintain(); !made || err != nil {
		t.Errorf("%t, %v", made, err)
	}
	if err := os.WriteFile(ballast, make([]byte, 8<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	want := fill(t, f) // into the allocated blocks
	must(t, f.Close())
	g := openedCopy(t, path, fault.HalfDNP)
	if got := read(g); g.Cold() != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("%q", g.Cold())
	}
}

// A user who can write in the directory must not be able to redirect writes.
func TestSymbolicLinksAreNotFollowed(t *testing.T) {
	for _, name := range []string{"dnp.backup", "dnp.backup.new"} {
		dir := t.TempDir()
		victim := filepath.Join(dir, "victim")
		must(t, os.WriteFile(victim, []byte("precious"), 0o600))
		must(t, os.Symlink(victim, filepath.Join(dir, name)))
		f := openedCopy(t, filepath.Join(dir, "dnp.backup"), fault.HalfDNP)
		fill(t, f)
		if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
			t.Errorf("by %s it wrote into another file: %q, %v", name, b, err)
		}
		if info, err := os.Lstat(f.path); err != nil || info.Mode() != 0o600 {
			t.Errorf("%v, %v", info, err)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	f := openedCopy(t, pathIn(t), fault.HalfDNP)
	c, payload := snapshot(0), make([]byte, 250)
	ids := []fault.ReportID{{Epoch: 1, Seq: 1}}
	if n := testing.AllocsPerRun(100, func() {
		must(t, f.StoreCounters(grid.XPlus, &c))
		must(t, f.StoreNumbers(numbers(1, 0)))
		must(t, f.StoreRelay(3, payload))
		must(t, f.FreeRelay(3))
		must(t, f.PutReport(CopiedReport{Epoch: 1, Seq: 1, Payload: payload}))
		must(t, f.FreeReports(ids))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkStoreCounters(b *testing.B) {
	f := openedCopy(b, pathIn(b), fault.HalfDNP)
	c := snapshot(0)
	b.ReportAllocs()
	for b.Loop() {
		c.TxSeq++
		must(b, f.StoreCounters(grid.XPlus, &c))
	}
}

func BenchmarkPutAndFreeReport(b *testing.B) {
	f := openedCopy(b, pathIn(b), fault.HalfDNP)
	r := CopiedReport{Epoch: 1, Payload: make([]byte, 250)}
	ids := []fault.ReportID{{Epoch: 1}}
	b.ReportAllocs()
	for b.Loop() {
		r.Seq++
		ids[0].Seq = r.Seq
		must(b, f.PutReport(r))
		must(b, f.FreeReports(ids))
	}
}

func BenchmarkStoreRelay(b *testing.B) {
	f := openedCopy(b, pathIn(b), fault.HalfDNP)
	payload := make([]byte, 1300)
	b.ReportAllocs()
	for b.Loop() {
		must(b, f.StoreRelay(3, payload))
	}
}

func BenchmarkMaintain(b *testing.B) {
	f := openedCopy(b, pathIn(b), fault.HalfDNP)
	fill(b, f)
	b.ReportAllocs()
	for b.Loop() {
		if made, err := f.Maintain(); made || err != nil {
			b.Fatal(made, err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	path := pathIn(b)
	f, err := OpenCopy(path, identity(fault.HalfDNP))
	must(b, err)
	fill(b, f)
	must(b, f.Close())
	for b.Loop() {
		f, err := OpenCopy(path, identity(fault.HalfDNP))
		must(b, err)
		must(b, f.Close())
	}
}
