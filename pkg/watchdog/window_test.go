package watchdog

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	windowRead   = 30 * time.Millisecond
	windowMisses = 2
)

var windowStart = time.Unix(1000, 0)

func windowAt(ms int) time.Time { return windowStart.Add(time.Duration(ms) * time.Millisecond) }

func newTestWindow() *Window {
	return NewWindow(WindowConfig{TRead: windowRead, Misses: windowMisses, Life: 1}, windowAt(0))
}

// statement returns a frame with a statement of one word.
func statement(t *testing.T, session uint32, seq, epoch, life uint64) WindowFrame {
	t.Helper()
	b, err := AppendStatement(nil, life, BootID{9}, []WindowWord{{Name: uint16(AddrHostWatchdog), Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	return WindowFrame{Session: session, Seq: seq, Epoch: epoch, Payload: b}
}

func hear(t *testing.T, w *Window, ms int, f WindowFrame) WindowOutput {
	t.Helper()
	out, err := w.Hear(windowAt(ms), f)
	if err != nil {
		t.Fatalf("at %d ms: %v", ms, err)
	}
	return out
}

func TestWindowTellsDeadProcessFromSilentKernel(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(w *Window)
		want WindowState
	}{
		{"answers without statements", func(w *Window) {
			for ms := 40; ms <= 120; ms += 20 {
				hear(t, w, ms, WindowFrame{Session: 7, Seq: uint64(ms)})
			}
		}, WindowAlive},
		{"refusals", func(w *Window) { w.Refused(windowAt(60)) }, WindowRefused},
		{"nothing", func(*Window) {}, WindowSilent},
		{"a refusal from before the last frame", func(w *Window) {
			w.Refused(windowAt(10))
			hear(t, w, 30, WindowFrame{Session: 7, Seq: 2})
		}, WindowSilent},
	} {
		w := newTestWindow()
		hear(t, w, 0, statement(t, 7, 1, 1, 5))
		tc.do(w)
		if !w.Asks(windowAt(60)) {
			t.Errorf("%s: no question after 60 ms without a statement", tc.name)
		}
		if got, age := w.State(windowAt(120)); got != tc.want {
			t.Errorf("%s: %s after %s: want %s", tc.name, got, age, tc.want)
		}
	}
	w := newTestWindow()
	w.Refused(windowAt(100))
	if s, _ := w.State(windowAt(2700)); s != WindowSilent {
		t.Errorf("a refusal counts for ever: %s", s)
	}
}

// TestWindowThatWorksAgainWaitsForStatement: after a cut, the first frame may be an answer without words. The register then still has no
// valid word, and the other half must not look dead beside a window that is alive.
func TestWindowThatWorksAgainWaitsForStatement(t *testing.T) {
	w := newTestWindow()
	want := func(ms int, want WindowState) {
		t.Helper()
		if got, _ := w.State(windowAt(ms)); got != want {
			t.Errorf("at %d ms: %v, want %v", ms, got, want)
		}
	}
	hear(t, w, 10, statement(t, 7, 1, 1, 2))
	want(20, WindowAlive)
	want(200, WindowSilent)
	hear(t, w, 210, WindowFrame{Session: 7, Seq: 2})
	want(211, WindowSilent)
	hear(t, w, 220, statement(t, 7, 3, 1, 2))
	want(221, WindowAlive)
	want(400, WindowSilent)
	for ms := 410; ms <= 480; ms += 10 { // a process that answers, and does not write
		hear(t, w, ms, WindowFrame{Session: 7, Seq: uint64(ms)})
	}
	want(470, WindowSilent)
	want(471, WindowAlive)
}

// TestWindowIsAliveSoonAfterCut joins two ends after a cut. Each one writes as half.Window does. Neither end may be alive before it has the
// other one's statement, and both have it after a write or two.
func TestWindowIsAliveSoonAfterCut(t *testing.T) {
	const write = 7 // ms
	ends := [2]*Window{newTestWindow(), newTestWindow()}
	var seq [2]uint64
	cut, joined, fresh := 100, 500, [2]bool{}
	for ms := 1; ms <= 700; ms++ {
		for i, w := range ends {
			if ms%write != 3*i {
				continue
			}
			var frames []WindowFrame
			add := func(f WindowFrame) {
				seq[i]++
				f.Session, f.Seq, f.Epoch = 7, seq[i], 1
				frames = append(frames, f)
			}
			if w.Asks(windowAt(ms)) {
				add(WindowFrame{Ask: true})
			}
			if len(frames) == 0 || w.Hears(windowAt(ms)) {
				add(statement(t, 7, 0, 1, uint64(i+1)))
			}
			for _, f := range frames {
				if ms > cut && ms < joined {
					continue
				}
				if out := hear(t, ends[1-i], ms, f); out.Answer {
					seq[1-i]++
					hear(t, w, ms, WindowFrame{Session: 7, Seq: seq[1-i], Epoch: 1})
				}
				fresh[1-i] = fresh[1-i] || ms >= joined && len(f.Payload) > 0
			}
		}
		for i, w := range ends {
			state, _ := w.State(windowAt(ms))
			switch {
			case ms >= joined && state == WindowAlive && !fresh[i]:
				t.Fatalf("end %d is alive at %d ms without a statement", i, ms)
			case ms >= joined+3*write && state != WindowAlive:
				t.Fatalf("end %d is %v at %d ms, %d ms after the cut", i, state, ms, ms-joined)
			case ms == joined-1 && state != WindowSilent:
				t.Fatalf("end %d is %v while the window is cut", i, state)
			}
		}
	}
}

// TestWindowAsksBeforeVerdict: the first question leaves with the first write at which a statement is overdue. The verdict
// comes at least two reads after the last statement.
func TestWindowAsksBeforeVerdict(t *testing.T) {
	w := newTestWindow()
	hear(t, w, 0, statement(t, 7, 1, 1, 5))
	if w.Asks(windowAt(20)) {
		t.Error("a question although the next statement is not overdue")
	}
	if !w.Asks(windowAt(23)) {
		t.Error("no question after three quarters of a read")
	}
}

func TestWindowAcceptsEachFrameOnce(t *testing.T) {
	w := newTestWindow()
	if out := hear(t, w, 0, statement(t, 7, 10, 1, 5)); !out.Holder || len(out.Words) != 1 {
		t.Errorf("first statement: %+v", out)
	}
	if out := hear(t, w, 1, statement(t, 7, 9, 1, 5)); out.Words != nil {
		t.Errorf("words of a statement that was overtaken: %+v", out)
	}
	for _, seq := range []uint64{10, 9} {
		if _, err := w.Hear(windowAt(2), statement(t, 7, seq, 1, 5)); !errors.Is(err, ErrWindowReplay) {
			t.Errorf("frame %d again: %v", seq, err)
		}
	}
	hear(t, w, 3, statement(t, 7, 100, 1, 5))
	if _, err := w.Hear(windowAt(4), statement(t, 7, 36, 1, 5)); !errors.Is(err, ErrWindowReplay) {
		t.Errorf("frame too old to know: %v", err)
	}
	hear(t, w, 4, WindowFrame{Session: 7, Seq: 37})
	if out := hear(t, w, 5, statement(t, 8, 1, 1, 5)); out.Words == nil || out.Holder {
		t.Errorf("first frame of a new session: %+v", out)
	}
	if s := w.Stats(); s.Replays != 3 {
		t.Errorf("%+v", s)
	}
}

func TestSecondClaimantWaitsForLease(t *testing.T) {
	w := newTestWindow()
	hear(t, w, 0, statement(t, 7, 1, 4, 5))
	if out, err := w.Hear(windowAt(20), statement(t, 8, 1, 4, 6)); !errors.Is(err, ErrWindowLeased) || !out.Deny || out.Words != nil {
		t.Errorf("same epoch, within the lease: %+v %v", out, err)
	}
	if out := hear(t, w, 21, statement(t, 9, 1, 5, 6)); !out.Holder {
		t.Errorf("newer epoch: %+v", out)
	}
	if _, err := w.Hear(windowAt(22), statement(t, 7, 2, 4, 5)); !errors.Is(err, ErrWindowLeased) {
		t.Errorf("the former holder: %v", err)
	}
	if out := hear(t, w, 60, statement(t, 7, 3, 4, 5)); !out.Holder {
		t.Errorf("after the lease: %+v", out)
	}
	claimant := newTestWindow()
	hear(t, claimant, 0, WindowFrame{Session: 8, Seq: 1, Payload: AppendDenial(nil, 5)})
	if !claimant.Denied(windowAt(500)) || claimant.Denied(windowAt(1000)) {
		t.Error("a denial does not last for a second")
	}
}

// elsewhere returns a statement of a process on another kernel.
func elsewhere(t *testing.T, session uint32, seq, epoch, life uint64) WindowFrame {
	t.Helper()
	b, err := AppendStatement(nil, life, BootID{8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return WindowFrame{Session: session, Seq: seq, Epoch: epoch, Payload: b}
}

// TestSecondKernelWaitsForLease: a newer boot epoch shows a restarted process on the same kernel alone. A live lease of another
// kernel outlasts it.
func TestSecondKernelWaitsForLease(t *testing.T) {
	w := newTestWindow()
	hear(t, w, 0, statement(t, 7, 1, 4, 5))
	if out, err := w.Hear(windowAt(20), elsewhere(t, 8, 1, 9, 6)); !errors.Is(err, ErrWindowLeased) || !out.Deny {
		t.Errorf("within the lease: %+v %v", out, err)
	}
	if out := hear(t, w, 40, elsewhere(t, 8, 2, 9, 6)); !out.Holder {
		t.Errorf("after the lease: %+v", out)
	}
	later := statement(t, 8, 3, 10, 7) // a process of a later version, whose kernel is not known
	later.Payload[0] = 2
	if out, err := w.Hear(windowAt(41), later); !errors.Is(err, ErrWindowVersion) || !out.Holder {
		t.Errorf("a newer epoch on a kernel that is not known: %+v %v", out, err)
	}
	if out := hear(t, w, 42, statement(t, 8, 4, 11, 8)); !out.Holder {
		t.Errorf("a newer epoch after a holder whose kernel is not known: %+v", out)
	}
}

// TestClaimOfOtherEndIsNoSilence: a process of this half at the other end shows that its kernel lives, until a frame of the other half
// arrives or the claim is old.
func TestClaimOfOtherEndIsNoSilence(t *testing.T) {
	w := newTestWindow()
	w.Claimed(windowAt(100))
	for ms, want := range map[int]WindowState{100: WindowClaimed, 5100: WindowClaimed, 5101: WindowSilent} {
		if s, _ := w.State(windowAt(ms)); s != want {
			t.Errorf("at %d ms: %s: want %s", ms, s, want)
		}
	}
	hear(t, w, 200, statement(t, 7, 1, 1, 5))
	for ms, want := range map[int]WindowState{200: WindowAlive, 300: WindowSilent} {
		if s, _ := w.State(windowAt(ms)); s != want {
			t.Errorf("at %d ms, after a statement: %s: want %s", ms, s, want)
		}
	}
	if s := w.Stats(); s.Leased != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLeaseDecidesAboutSession: a session that another process made is not used while the holder's lease lasts.
func TestLeaseDecidesAboutSession(t *testing.T) {
	empty := WindowFrame{Session: 8, Seq: 1, Epoch: 4, Ask: true}
	newer := empty
	newer.Epoch = 5
	denial := empty
	denial.Payload = AppendDenial(nil, 5)
	for _, tc := range []struct {
		name     string
		ms       int
		f        WindowFrame
		ok, deny bool
	}{
		{"the holder's statement", 20, statement(t, 8, 1, 4, 5), true, false},
		{"another process", 20, statement(t, 8, 1, 4, 6), false, true},
		{"a question, of nobody knows whom", 20, empty, false, false},
		{"a denial, which has the receiver's random number", 20, denial, false, true},
		{"a question with a newer epoch, which names no kernel", 20, newer, false, false},
		{"a restarted process: a newer epoch on the same kernel", 20, statement(t, 8, 1, 5, 6), true, false},
		{"a newer epoch on another kernel", 20, elsewhere(t, 8, 1, 5, 6), false, true},
		{"after the lease", 40, statement(t, 8, 1, 4, 6), true, false},
	} {
		w := newTestWindow()
		hear(t, w, 0, statement(t, 7, 1, 4, 5))
		deny, err := w.Admit(windowAt(tc.ms), tc.f)
		if (err == nil) != tc.ok || deny != tc.deny || err != nil && !errors.Is(err, ErrWindowLeased) && !errors.Is(err, ErrWindowUndecided) {
			t.Errorf("%s: deny %t, %v", tc.name, deny, err)
		}
		if _, silence := w.State(windowAt(tc.ms)); silence != time.Duration(tc.ms)*time.Millisecond {
			t.Errorf("%s: a sign of life", tc.name)
		}
	}
}

func TestLaterVersionIsSignOfLife(t *testing.T) {
	w := newTestWindow()
	f := statement(t, 7, 1, 1, 5)
	f.Payload[0] = 2
	out, err := w.Hear(windowAt(0), f)
	if !errors.Is(err, ErrWindowVersion) || !out.Beat || !strings.Contains(err.Error(), "2: want 1") {
		t.Errorf("%+v %v", out, err)
	}
	mail, err := AppendMail(nil, 7, []byte("mail"))
	if err != nil {
		t.Fatal(err)
	}
	mail[0] = 2
	f.Seq, f.Payload = f.Seq+1, mail
	if out, err := w.Hear(windowAt(0), f); !errors.Is(err, ErrWindowVersion) || out.Beat {
		t.Errorf("mail of a later version: %+v %v: want no beat, since it writes no watchdog word", out, err)
	}
}

// TestMailBeginsNoLease: mail of a process that never stated its words reaches no mailbox, and takes no lease.
func TestMailBeginsNoLease(t *testing.T) {
	w := newTestWindow()
	mail, err := AppendMail(nil, 9, []byte("mail"))
	if err != nil {
		t.Fatal(err)
	}
	f := statement(t, 7, 1, 1, 5)
	f.Payload = mail
	if out, err := w.Hear(windowAt(0), f); err != nil || out.Mail != nil || out.Holder {
		t.Errorf("%+v %v", out, err)
	}
}

func TestWindowDatagrams(t *testing.T) {
	words := []WindowWord{{1, 2}, {3, 0xffffffff}}
	b, err := AppendStatement(nil, 5, BootID{1, 2}, words)
	if err != nil {
		t.Fatal(err)
	}
	want := WindowDatagram{Life: 5, Boot: BootID{1, 2}, Words: words, Statement: true}
	if d, err := DecodeWindow(b); err != nil || !reflect.DeepEqual(d, want) {
		t.Errorf("%+v %v", d, err)
	}
	mail, err := AppendMail(nil, 5, []byte("mail"))
	if err != nil {
		t.Fatal(err)
	}
	if d, err := DecodeWindow(mail); err != nil || string(d.Mail) != "mail" {
		t.Errorf("%+v %v", d, err)
	}
	if d, err := DecodeWindow(AppendDenial(nil, 5)); err != nil || !d.Denied || d.Life != 5 {
		t.Errorf("%+v %v", d, err)
	}
	if _, err := AppendStatement(nil, 5, BootID{}, make([]WindowWord, MaxWindowWords+1)); err == nil {
		t.Error("too many words")
	}
	if _, err := AppendStatement(nil, 0, BootID{}, nil); err == nil {
		t.Error("process 0")
	}
	for _, n := range []int{0, MaxWindowMail + 1} {
		if _, err := AppendMail(nil, 5, make([]byte, n)); err == nil {
			t.Errorf("mail of %d bytes", n)
		}
	}
	for _, tc := range []struct {
		b    []byte
		want string
	}{
		{nil, "0 bytes: want at least 10"},
		{mail[:10], "mail of 0 bytes: want 1 to 8100"},
		{slices.Concat(mail, make([]byte, MaxWindowMail)), "mail of 8104 bytes"},
		{b[:20], "statement of 20 bytes: want at least 28"},
		{b[:len(b)-1], "statement of 2 words in 11 bytes"},
		{append(AppendDenial(nil, 5), 0), "denial with 1 bytes: want none"},
		{[]byte{1, 4, 0, 0, 0, 0, 0, 0, 0, 1}, "kind is 4: want 1 to 3"},
		{append(make([]byte, 9), 5), "unknown version of a window datagram: 0: want 1"},
		{[]byte{1, 1, 0, 0, 0, 0, 0, 0, 0, 0}, "process is 0"},
	} {
		if _, err := DecodeWindow(tc.b); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("% x: %v: want %q", tc.b[:min(len(tc.b), 16)], err, tc.want)
		}
	}
}

func FuzzDecodeWindow(f *testing.F) {
	b, _ := AppendStatement(nil, 5, BootID{1, 2}, []WindowWord{{1, 2}})
	m, _ := AppendMail(nil, 5, []byte("mail"))
	for _, s := range [][]byte{b, m, AppendDenial(nil, 1)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := DecodeWindow(b)
		if err != nil {
			return
		}
		var back []byte
		switch {
		case d.Denied:
			back = AppendDenial(nil, d.Life)
		case d.Mail != nil:
			back, err = AppendMail(nil, d.Life, d.Mail)
		default:
			back, err = AppendStatement(nil, d.Life, d.Boot, d.Words)
		}
		if err != nil || !bytes.Equal(back, b) {
			t.Errorf("%x comes back as %x, %v", b, back, err)
		}
	})
}

// FuzzWindowFrames gives the machine any sequence of well-formed frames: no frame counts twice, and a claimant never takes
// a live lease with an old epoch.
func FuzzWindowFrames(f *testing.F) {
	f.Add([]byte{1, 1, 1, 1, 2, 1, 1, 1, 2, 3, 2, 2})
	f.Fuzz(func(t *testing.T, in []byte) {
		w, now := newTestWindow(), 0
		taken := map[[2]uint64]bool{}
		for ; len(in) >= 4; in = in[4:] {
			now += int(in[0] >> 4)
			session, seq, epoch, life := uint32(in[0]&3)+1, uint64(in[1]), uint64(in[2]&7), uint64(in[3]&3)+1
			if session < w.session {
				continue // the caller has forgotten its keys
			}
			was, wasEpoch, stated := w.life, w.epoch, w.stated
			out, err := w.Hear(windowAt(now), statement(t, session, seq, epoch, life))
			if err != nil {
				continue
			}
			if key := [2]uint64{uint64(session), seq}; taken[key] {
				t.Fatalf("frame %v counts twice", key)
			} else {
				taken[key] = true
			}
			if out.Holder && was != 0 && epoch <= wasEpoch && windowAt(now).Before(stated.Add(windowRead)) {
				t.Fatal("a live lease went to an old epoch")
			}
		}
	})
}
