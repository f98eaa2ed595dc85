package torus

import (
	"container/heap"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lofamo/lofamo/internal/testing/golden"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// TestScenarios runs every testdata/*.txt: two ends of a link, real frames, virtual time. A file is a script, a line
// "--", and the resulting trace, line by line. The script's commands:
//
//	config KEY=VALUE…        periods and thresholds of both ends; first
//	at TIME COMMAND …        of the wire a>b or b>a: cut, heal, drop, corrupt, dup or delay every N-th
//	                         of an end: stop and cont (SIGSTOP, SIGCONT), kill, start, host-dead,
//	                         revive (a killed one goes on with all that it knew), resume (with what it
//	                         keeps outside its process), and announce N:
//	                         whoever looks after a killed one says that it is back in N ms
//	                         refuse: its kernel answers frames to a killed one, and hint N: it gets so many such
//	                         answers although the peer lives; reject: its kernel answers all frames to it although it lives
//	                         to an end: stranger N (noise), forge N (wrong key), replay N (of old frames)
//	                         handshake: a new session for both
//	end TIME                 and the counters that are not 0
func TestScenarios(t *testing.T) {
	golden.Files(t, "testdata/*.txt", func(t *testing.T, text string) string {
		script, _, _ := strings.Cut(text, "\n--\n")
		w := newWorld(t, script)
		w.run()
		return script + "\n--\n" + strings.Join(w.log, "\n") + "\n"
	})
}

const (
	wireDelay     = time.Millisecond
	overtaken     = 40 * time.Millisecond // time of a delayed packet: more than a period
	handshakeTime = 20 * time.Millisecond
	socketBuffer  = 8 // packets waiting for a stopped process when it continues
)

// world is two ends, a and b, and the wire between them; a is the one that dials.
type world struct {
	t        *testing.T
	start    time.Time
	now      time.Time
	end      time.Duration
	events   timeline
	serial   int
	cfg      LinkConfig
	ends     [2]*end
	sessions uint32
	dialling bool
	waits    bool // a handshake waits for a stopped end to continue
	log      []string
}

type end struct {
	name    string
	link    *Link
	keys    *Keyring
	epoch   fault.Epoch
	dead    bool // its host
	refuses bool // while it is not alive
	rejects bool // although it is alive
	alive   bool
	stopped bool
	queue   [][]byte // the socket buffer of a stopped process; the newest drops
	tick    int      // only the timer of this serial number counts
	out     pipe
	attempt uint32 // of the restart
}

// pipe is one way of the wire. Every n-th packet meets the fault that is set; 0 is none.
type pipe struct {
	cut                       bool
	drop, corrupt, dup, delay int
	count                     int
	history                   [][]byte
}

type timed struct {
	at     time.Time
	serial int
	do     func()
}

type timeline []timed

func (h timeline) Len() int { return len(h) }
func (h timeline) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].serial < h[j].serial
}
func (h timeline) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *timeline) Push(x any)   { *h = append(*h, x.(timed)) }
func (h *timeline) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}

func newWorld(t *testing.T, script string) *world {
	start := time.Unix(1_000_000, 0)
	w := &world{t: t, start: start, now: start, cfg: testConfig(), ends: [2]*end{{name: "a"}, {name: "b"}}}
	golden.Lines(t, script, "--", func(f []string) ([]string, error) { return nil, w.command(f) })
	for _, e := range w.ends {
		w.startEnd(e)
	}
	w.handshake()
	return w
}

func (w *world) command(f []string) error {
	switch f[0] {
	case "config":
		return w.configure(f[1:])
	case "end":
		d, err := time.ParseDuration(f[1])
		w.end = d
		return err
	case "at":
		at, err := time.ParseDuration(f[1])
		if err != nil {
			return err
		}
		do, err := w.action(f[2:])
		if err != nil {
			return err
		}
		w.at(w.start.Add(at), func() {
			w.note("*", strings.Join(f[2:], " "))
			do()
		})
		return nil
	}
	return fmt.Errorf("unknown command %q", f[0])
}

func (w *world) configure(settings []string) error {
	for _, s := range settings {
		key, v, _ := strings.Cut(s, "=")
		var err error
		switch key {
		case "period":
			w.cfg.Period, err = time.ParseDuration(v)
		case "misses":
			w.cfg.Misses, err = strconv.Atoi(v)
		case "window":
			w.cfg.Window, err = strconv.Atoi(v)
		case "holdoff":
			w.cfg.HoldOff, err = time.ParseDuration(v)
		case "grace":
			w.cfg.Grace, err = time.ParseDuration(v)
		default:
			err = fmt.Errorf("unknown setting %q", key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *world) action(f []string) (func(), error) {
	if f[0] == "handshake" {
		return w.handshake, nil
	}
	if len(f) < 2 {
		return nil, fmt.Errorf("%s needs an object", f[0])
	}
	n := 0
	if len(f) > 2 {
		var err error
		if n, err = strconv.Atoi(f[2]); err != nil {
			return nil, err
		}
	}
	if from, to, ok := strings.Cut(f[1], ">"); ok {
		return w.wireAction(f[0], &w.find(from).out, to, n)
	}
	e := w.find(f[1])
	switch f[0] {
	case "stop":
		return func() { e.stopped = true }, nil
	case "cont":
		return func() { w.wakeUp(e) }, nil
	case "kill":
		return func() { e.alive = false; w.resetDial() }, nil
	case "start":
		return func() { w.resetDial(); w.startEnd(e); w.redial(e) }, nil
	case "resume":
		return func() { w.resumeEnd(e) }, nil
	case "revive":
		return func() { e.alive = true; w.step(e, Tick{}) }, nil
	case "announce":
		return func() { w.announce(e, time.Duration(n)*time.Millisecond) }, nil
	case "host-dead":
		return func() { e.dead = true; w.send(e, e.link.NextFrame(e.status())) }, nil
	case "refuse":
		return func() { e.refuses = true }, nil
	case "reject":
		return func() { e.rejects = true }, nil
	case "hint":
		return func() {
			for range n {
				w.step(e, Refused{})
			}
		}, nil
	case "stranger":
		return func() { w.noise(e, n) }, nil
	case "forge":
		return func() { w.forge(e, n) }, nil
	case "replay":
		return func() { w.replay(e, n) }, nil
	}
	return nil, fmt.Errorf("unknown action %q", f[0])
}

func (w *world) wireAction(name string, p *pipe, _ string, n int) (func(), error) {
	switch name {
	case "cut":
		return func() { p.cut = true }, nil
	case "heal":
		return func() { p.cut, p.drop, p.corrupt, p.dup, p.delay = false, 0, 0, 0, 0 }, nil
	case "drop":
		return func() { p.drop = n }, nil
	case "corrupt":
		return func() { p.corrupt = n }, nil
	case "dup":
		return func() { p.dup = n }, nil
	case "delay":
		return func() { p.delay = n }, nil
	}
	return nil, fmt.Errorf("unknown action on the wire %q", name)
}

func (w *world) find(name string) *end {
	for _, e := range w.ends {
		if e.name == name {
			return e
		}
	}
	w.t.Fatalf("no end %q", name)
	return nil
}

func (w *world) peer(e *end) *end {
	if e == w.ends[0] {
		return w.ends[1]
	}
	return w.ends[0]
}

func (w *world) at(t time.Time, do func()) {
	w.serial++
	heap.Push(&w.events, timed{t, w.serial, do})
}

func (w *world) note(who, what string) {
	w.log = append(w.log, fmt.Sprintf("%10s %s %s", w.now.Sub(w.start).Round(time.Microsecond), who, what))
}

func (w *world) run() {
	for len(w.events) > 0 && w.events[0].at.Sub(w.start) <= w.end {
		ev := heap.Pop(&w.events).(timed)
		w.now = ev.at
		ev.do()
	}
	for _, e := range w.ends {
		w.log = append(w.log, fmt.Sprintf("%10s %s %s", "end", e.name, summary(e.link)))
	}
}

func (e *end) status() Status {
	return Status{Epoch: e.epoch, DNP: 1, Host: 1, HostDead: e.dead}
}

// startEnd starts a process: nothing of the one before it is left but the epoch on its disk.
func (w *world) startEnd(e *end) {
	e.epoch++
	cfg := w.cfg
	if e.name == "b" {
		cfg.Dir, cfg.Src, cfg.Dst = grid.XMinus, cfg.Dst, cfg.Src
	}
	e.link, e.keys, e.queue, e.alive, e.stopped = NewLink(cfg, w.now), &Keyring{}, nil, true, false
	w.step(e, Tick{})
}

// resumeEnd starts an end from the snapshots of its link and its session.
func (w *world) resumeEnd(e *end) {
	e.link = ResumeLink(e.link.Config(), w.now, e.link.Snapshot())
	if s := e.keys.current; s != nil {
		tx, rx := s.Keys()
		e.keys = &Keyring{}
		e.keys.Add(w.now, ResumeSession(s.ID(), tx, rx, e.link.Snapshot().TxSeq))
	}
	e.queue, e.alive, e.stopped = nil, true, false
	w.step(e, Tick{})
}

// step acts as the shell of a machine.
func (w *world) step(e *end, ev LinkEvent) {
	out := e.link.Step(w.now, ev)
	if out.Late {
		w.note(e.name, "was late itself")
	}
	if out.Changed {
		w.note(e.name, fmt.Sprintf("%s: %s", out.State, out.Detail))
	}
	if out.PeerChanged {
		w.note(e.name, fmt.Sprintf("peer: epoch %d, host dead %t", out.Peer.Epoch, out.Peer.HostDead))
	}
	if out.SendHeartbeat {
		w.send(e, e.link.NextFrame(e.status()))
	}
	if out.SendAsk {
		w.send(e, e.link.NextAsk(e.status()))
	}
	if out.Redial {
		w.redial(e)
	}
	w.serial++
	e.tick = w.serial
	mine := e.tick
	w.at(out.Wake, func() {
		if e.tick == mine && e.alive && !e.stopped {
			w.step(e, Tick{})
		}
	})
}

// redial starts a handshake from a, the end that dials. It succeeds if packets pass both ways. If an end is stopped, its
// kernel accepts the connection, and the handshake completes when the process continues.
func (w *world) redial(e *end) {
	if e.name != "a" || w.dialling {
		return
	}
	w.dialling = true
	w.at(w.now.Add(handshakeTime), w.answerDial)
}

// answerDial completes a handshake, or leaves it to wakeUp while an end is stopped.
func (w *world) answerDial() {
	w.waits = w.ends[0].stopped || w.ends[1].stopped
	if w.waits {
		return
	}
	w.dialling = false
	for _, e := range w.ends {
		if e.out.cut || !e.alive {
			return
		}
	}
	w.handshake()
}

// resetDial ends a handshake with a process that is stopped: it is over.
func (w *world) resetDial() {
	if w.waits {
		w.waits, w.dialling = false, false
	}
}

func (w *world) handshake() {
	w.sessions++
	a, b := pair(w.sessions, byte(w.sessions))
	for i, s := range []*Session{a, b} {
		w.ends[i].keys.Add(w.now, s)
		w.step(w.ends[i], SessionStarted{s.ID()})
	}
}

func (w *world) send(e *end, f Frame) {
	wire, err := f.Append(nil, e.keys)
	if err != nil {
		return // before the first handshake
	}
	p := &e.out
	p.count++
	p.history = append(p.history, wire)
	every := func(n int) bool { return n > 0 && p.count%n == 0 }
	if p.cut || every(p.drop) {
		return
	}
	if every(p.corrupt) {
		wire = append([]byte(nil), wire...)
		wire[p.count%len(wire)] ^= 0x10
	}
	delay := wireDelay
	if every(p.delay) {
		delay = overtaken
	}
	to := w.peer(e)
	w.at(w.now.Add(delay), func() { w.arrive(to, wire) })
	if every(p.dup) {
		w.at(w.now.Add(delay), func() { w.arrive(to, wire) })
	}
}

func (w *world) arrive(e *end, wire []byte) {
	if !e.alive || e.rejects {
		if peer := w.peer(e); (e.refuses || e.rejects) && peer.alive && !peer.stopped {
			w.at(w.now.Add(wireDelay), func() { w.step(peer, Refused{}) })
		}
		return
	}
	if e.stopped {
		if len(e.queue) < socketBuffer {
			e.queue = append(e.queue, wire)
		}
		return
	}
	e.keys.Expire(w.now)
	f, err := Decode(wire, DefaultMaxFrame, e.keys)
	if err != nil {
		w.step(e, FrameBad{Kind: KindOf(err)})
		return
	}
	e.keys.Confirm(f.Session)
	w.step(e, FrameReceived{Frame: f})
}

// wakeUp continues a stopped process, which looks at its timer before it looks at its socket.
func (w *world) wakeUp(e *end) {
	e.stopped = false
	if w.waits {
		w.answerDial()
	}
	w.step(e, Tick{})
	for _, wire := range e.queue {
		w.arrive(e, wire)
	}
	e.queue = nil
}

// announce acts as the recovery daemon, with the frame in a dead half's copy.
func (w *world) announce(e *end, back time.Duration) {
	e.attempt++
	f := e.link.NextFrame(e.status())
	w.send(e, RestartingFrame(f, Restarting{Back: back, Attempt: e.attempt}))
}

func (w *world) noise(e *end, n int) {
	history := w.peer(e).out.history
	for i := range n {
		wire := append([]byte(nil), history[len(history)-1]...)
		wire[i%len(wire)] ^= 0xff
		w.arrive(e, wire)
	}
}

func (w *world) forge(e *end, n int) {
	history := w.peer(e).out.history
	for range n {
		wire := append([]byte(nil), history[len(history)-1]...)
		wire[headerSize-1] ^= 1 // another host word
		w.arrive(e, recrc(wire))
	}
}

func (w *world) replay(e *end, n int) {
	history := w.peer(e).out.history
	for _, wire := range history[max(0, len(history)-n):] {
		w.arrive(e, wire)
	}
}

func summary(l *Link) string {
	s := l.Stats()
	var out strings.Builder
	out.WriteString(l.State().String())
	for _, c := range []struct {
		name string
		v    uint64
	}{
		{"lost", s.Lost}, {"late", s.Late}, {"duplicates", s.Duplicates}, {"replays", s.Replays}, {"misrouted", s.Misrouted}, {"crc", s.CRC},
		{"crc-strange", s.CRCStrange}, {"mac", s.MAC}, {"sessions", s.Sessions}, {"malformed", s.Malformed}, {"own-late",
			s.OwnLate}, {"restarting", s.Restarting},
	} {
		if c.v != 0 {
			fmt.Fprintf(&out, " %s=%d", c.name, c.v)
		}
	}
	return out.String()
}
