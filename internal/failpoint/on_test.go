//go:build lofamo_failpoint

package failpoint

import (
	"bytes"
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func arm(t *testing.T, o Order) {
	t.Helper()
	if err := Arm(o); err != nil {
		t.Fatal(err)
	}
}

func TestHitSkipsAndCounts(t *testing.T) {
	arm(t, Order{Point: LinkSend, Action: "drop", Skip: 2, Times: 2})
	for i, want := range []Action{Pass, Pass, Drop, Drop, Pass} {
		if got := Hit(LinkSend); got != want {
			t.Errorf("hit %d: %s, want %s", i, got, want)
		}
	}
	if armed.any.Load() {
		t.Error("something is armed still")
	}
}

func TestPacketIsDroppedDoubledOrCorrupted(t *testing.T) {
	for action, want := range map[string]struct {
		times int
		b     string
	}{"drop": {0, "ab"}, "double": {2, "ab"}, "corrupt": {1, "ar"}} {
		arm(t, Order{Point: HostSend, Action: action})
		b := []byte("ab")
		if n := Packet(HostSend, b); n != want.times || string(b) != want.b {
			t.Errorf("%s: %d times %q", action, n, b)
		}
	}
	if n := Packet(HostSend, nil); n != 1 {
		t.Errorf("%d times, and nothing armed", n)
	}
}

func TestDelayedPointWaits(t *testing.T) {
	arm(t, Order{Point: MailSend, Action: "delay", DelayMS: 20})
	begin := time.Now()
	if Hit(MailSend) != Pass || time.Since(begin) < 20*time.Millisecond {
		t.Error("no delay")
	}
}

// TestStoppedProcessContinuesAtPoint: a process stops at the point, does nothing until it is continued, and continues from there.
func TestStoppedProcessContinuesAtPoint(t *testing.T) {
	if os.Getenv("LOFAMO_FAILPOINT_CHILD") != "" {
		arm(t, Order{Point: MailSend, Action: "stop"})
		_, _ = os.Stdout.WriteString("before ")
		Hit(MailSend)
		_, _ = os.Stdout.WriteString("after ")
		os.Exit(0)
	}
	c := exec.Command(os.Args[0], "-test.run=^TestStoppedProcessContinuesAtPoint$")
	c.Env = append(os.Environ(), "LOFAMO_FAILPOINT_CHILD=1")
	var said bytes.Buffer
	c.Stdout = &said
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if stopped, err := Stopped(c.Process.Pid); !stopped || err != nil {
		t.Fatalf("stopped %t, %v", stopped, err)
	}
	if err := c.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if stopped, err := Stopped(c.Process.Pid); stopped || err != nil {
		t.Fatalf("after it went on: stopped %t, %v", stopped, err)
	}
	if err := c.Wait(); err != nil || said.String() != "before after " {
		t.Errorf("%q, %v", said.String(), err)
	}
}

func TestArmAtStart(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, File("dnp"))
	if err := ArmAtStart(dir, "dnp"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`[{"point":"start-opened","action":"double"}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ArmAtStart(dir, "dnp"); err != nil || Hit(StartOpened) != Double {
		t.Errorf("not armed: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the file would arm the next start too")
	}
}

func TestUnknownPointOrActionIsRefused(t *testing.T) {
	for _, o := range []Order{{Point: "nowhere", Action: "drop"}, {Point: LinkSend, Action: "explode"}} {
		if Arm(o) == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	mux := http.NewServeMux()
	Mount(mux)
	for body, want := range map[string]int{`{"point":"nowhere","action":"drop"}`: 400, `x`: 400,
		`{"point":"mail-receive","action":"drop"}`: 200} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("POST", "/failpoint", strings.NewReader(body)))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", body, w.Code, want)
		}
	}
}

// TestFlipChangesOneBitOfLiveData: a flip changes one bit of live data, through any kind of reference.
func TestFlipChangesOneBitOfLiveData(t *testing.T) {
	type inner struct{ n uint32 }
	type root struct {
		a    int64
		ok   bool
		p    *inner
		list []inner
		by   map[string]*inner
		self *root
		any  any
		text string
	}
	r := &root{p: &inner{}, list: make([]inner, 3), by: map[string]*inner{"x": {}}, any: &inner{}, text: "abc"}
	r.self = r
	paths := map[string]bool{}
	for seed := range uint64(400) {
		f, err := Flip(map[string]any{"r": r}, seed, false)
		if err != nil {
			t.Fatal(err)
		}
		if f.Of != 8 {
			t.Fatalf("%d scalars, want 8", f.Of)
		}
		paths[f.Path] = true
	}
	if len(paths) != 8 || r.text != "abc" {
		t.Errorf("flipped %v", paths)
	}
	for _, refs := range []bool{false, true} {
		if _, err := Flip(nil, 1, refs); err == nil {
			t.Error("nothing was flipped")
		}
	}
	refs := map[string]bool{}
	for seed := range uint64(400) { // a machine that runs on with such a flip ends soon
		s, _, of, err := choose(map[string]any{"r": r}, seed, true)
		if err != nil || of != 10 {
			t.Fatalf("%d references, want 10: %v", of, err)
		}
		refs[s.path] = true
	}
	for _, want := range []string{"r.p (pointer)", "r.list (length)", "r.list (capacity)", "r.by (pointer)", "r.any (type)", "r.text (length)"} {
		if !refs[want] {
			t.Errorf("%s is never chosen, of %v", want, refs)
		}
	}
}

// gate is a lock that announces a waiter and is granted by the test.
type gate struct{ wanted, given, back chan struct{} }

func (g gate) Lock()   { close(g.wanted); <-g.given }
func (g gate) Unlock() { close(g.back) }

// TestFlipHoldsOwnersLock: a flip reads nothing before it has the owner's lock, and the owner can do its work under
// the lock, including passing points.
func TestFlipHoldsOwnersLock(t *testing.T) {
	owned := map[string]*uint64{}
	g := gate{make(chan struct{}), make(chan struct{}), make(chan struct{})}
	Live("owned", owned, g)
	defer func() { armed.roots = nil }()
	mux := http.NewServeMux()
	Mount(mux)
	w, served := httptest.NewRecorder(), make(chan struct{})
	go func() {
		defer close(served)
		mux.ServeHTTP(w, httptest.NewRequest("POST", "/flip", strings.NewReader(`{"Seed":1}`)))
	}()
	select {
	case <-g.wanted:
	case <-served:
		t.Fatal("the lock was not taken")
	}
	arm(t, Order{Point: LinkSend, Action: "drop"})
	if Hit(LinkSend) != Drop {
		t.Error("the owner comes by a point, and nothing is done")
	}
	owned["x"] = new(uint64)
	close(g.given)
	<-served
	<-g.back
	if w.Code != http.StatusOK || *owned["x"] == 0 {
		t.Errorf("%d %s: nothing was flipped", w.Code, w.Body)
	}
}

func TestNothingIsArmed(t *testing.T) {
	clear(armed.by) // left by other tests
	arm(t, Order{Point: LinkSend, Action: "drop"})
	mux := http.NewServeMux()
	Mount(mux)
	for _, want := range []string{`{"armed":1}`, `{"armed":0}`} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("DELETE", "/failpoint", nil))
		if got := strings.TrimSpace(w.Body.String()); got != want || Hit(LinkSend) != Pass || armed.any.Load() {
			t.Errorf("%s was armed, want %s; still: %t", got, want, armed.any.Load())
		}
	}
}

// TestGateHoldsPointUntilRelease: the test learns of a held point, which continues only after its release.
func TestGateHoldsPointUntilRelease(t *testing.T) {
	g, err := NewGate()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()
	arm(t, g.Order(MailSend, 1))
	if Hit(MailSend) != Pass { // the first passes
		t.Error("no pass")
	}
	through := make(chan struct{})
	go func() {
		defer close(through)
		Hit(MailSend)
	}()
	p, release, err := g.Reached(time.Minute)
	if err != nil || p != MailSend {
		t.Fatal(p, err)
	}
	select {
	case <-through:
		t.Error("it was not held")
	default:
	}
	release()
	release()
	<-through
	if _, _, err := g.Reached(time.Millisecond); err == nil {
		t.Error("a point that nobody has come by was reached")
	}
}
