package half

import (
	"slices"
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/torus/grid"
	"github.com/lofamo/lofamo/pkg/watchdog"
)

// dnpWatcher judges the DNP half's word at the host's end of a window, as the host half does, and counts its verdicts.
type dnpWatcher struct {
	*watchdog.Reader
	stale int
}

func (w *dnpWatcher) read(e *windowEnd) {
	now := time.Now()
	out := w.Step(now, func() watchdog.Sample { return e.own.ReadDNP(now, true, nil).Sample })
	if out.Changed && out.Verdict == watchdog.Stale {
		w.stale++
	}
}

// TestBadFramesChangeNothing gives the host half's end of a window all bad input that can be made of good frames: repeated, truncated,
// flipped and forged frames, those of an older session, and a page of another version. No word changes, the watchdog finds the DNP half
// alive all the time, its process keeps the window, and the log has few lines.
func TestBadFramesChangeNothing(t *testing.T) {
	cfg, card := windowHalves(t)
	wire := joinBy(t, &cfg, &card)
	host, dnp := openEnd(t, cfg, fault.HalfHost), openEnd(t, card, fault.HalfDNP)
	began, periods := time.Now(), host.common.Periods
	l := &dnpWatcher{Reader: watchdog.NewReader(watchdog.ReaderConfig{TRead: periods.TRead, Misses: periods.ReadMisses}, began)}
	until := func(what string, holds func() bool) {
		t.Helper()
		await(t, what, func() bool { l.read(host); return holds() }, host, dnp)
	}
	store := func(celsius uint32) {
		t.Helper()
		if err := dnp.own.File.Store(watchdog.AddrTemperature, celsius); err != nil {
			t.Fatal(err)
		}
		until("the temperature", func() bool {
			got, err := host.own.File.Load(watchdog.AddrTemperature)
			return err == nil && got == celsius
		})
	}
	store(40)
	until("a window that has settled", func() bool { return host.counts().Statements > 20 }) // all later frames belong to one session
	wire.recordFrames(true)
	from := host.counts().Statements
	until("frames to record", func() bool { return host.counts().Statements > from+20 })
	frames := wire.recordFrames(false)
	store(45) // the recorded frames have another value

	before := host.counts()
	for _, f := range frames {
		wire.toHost(f)
	}
	until("repeated frames", func() bool { return host.counts().Repeated >= before.Repeated+uint64(len(frames)) })
	sent := before.Damaged + before.Malformed
	for i, frame := 0, frames[len(frames)-1]; i < len(frame); i += 8 {
		wire.toHost(frame[:i])
		for bit := range 8 {
			f := slices.Clone(frame)
			f[i] ^= 1 << bit
			wire.toHost(f)
		}
		sent += 9
		until("damaged frames", func() bool { c := host.counts(); return c.Damaged+c.Malformed >= sent })
	}
	until("another session", func() bool { host.link.Redial(); return host.counts().Sessions > before.Sessions })
	until("frames of that session", func() bool { wire.toHost(frames[0]); return host.counts().OldSession > before.OldSession })
	old := host.counts().OldSession
	for _, f := range frames {
		wire.toHost(f)
	}
	until("frames of the older session", func() bool { return host.counts().OldSession >= old+uint64(len(frames)) })
	wire.toHost(dnp.forged(t))
	until("a forged frame", func() bool { return host.counts().Forged > 0 })
	dnp.sendVersion2(t, 99)
	until("the page of another version", func() bool {
		return host.logs.count("decode window datagrams fails", "unknown version") == 1 &&
			host.logs.count("decode window datagrams works again") == 1
	})

	for _, a := range []watchdog.Addr{watchdog.AddrTemperature, watchdog.AddrPower} {
		if v, err := host.own.File.Load(a); err != nil || v != map[watchdog.Addr]uint32{watchdog.AddrTemperature: 45}[a] {
			t.Errorf("register %s has %d, %v: a bad frame changed it", a, v, err)
		}
	}
	store(50) // the window goes on
	end := time.Now().Add(watchdog.StaleBound(periods.TRead, periods.ReadMisses))
	until("the time within which a verdict would come", func() bool { return time.Now().After(end) })
	if l.stale > 0 || l.Verdict() != watchdog.Alive || l.Stats().Corrupt > 0 {
		t.Errorf("%d verdicts against the DNP half, which is now %s; %+v", l.stale, l.Verdict(), l.Stats())
	}
	if c := host.counts(); c.SecondClaimant > 0 || host.files.holder.Load() != 1 || c.State != "alive" ||
		dnp.logs.count("claim the window") > 0 {
		t.Errorf("the lease: %d holders, %+v", host.files.holder.Load(), c)
	}
	if n, most := host.logs.count("window frames dropped"), 1+int(time.Since(began)/droppedEvery); n == 0 || n > most {
		t.Errorf("%d lines about dropped frames: want 1 to %d\n%s", n, most, host.logs.all())
	}
}

// recordFrames begins or ends a recording of the cards' frames, and returns them.
func (b *hub) recordFrames(on bool) [][]byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.record = on
	out := b.frames
	if b.frames = nil; on {
		return nil
	}
	return out
}

// forged returns a frame of the current session whose sender does not have its keys.
func (w *Window) forged(t *testing.T) []byte {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	id, _ := w.keys.Current()
	keys := torus.NewSession(id, [torus.KeySize]byte{1}, [torus.KeySize]byte{2})
	b, err := watchdog.AppendStatement(nil, w.life, w.boot, []watchdog.WindowWord{{Name: uint16(watchdog.AddrTemperature), Value: 99}})
	if err != nil {
		t.Fatal(err)
	}
	f := torus.Frame{Type: torus.TypeMessage, Direction: grid.XMinus, Session: id, Epoch: w.epoch, Seq: w.seq + 1000, Payload: b}
	if b, err = f.Append(nil, keys); err != nil {
		t.Fatal(err)
	}
	return b
}

// sendVersion2 sends an authentic page of a later version with a value for a register.
func (w *Window) sendVersion2(t *testing.T, power uint32) {
	t.Helper()
	b, err := watchdog.AppendStatement(nil, w.life, w.boot, []watchdog.WindowWord{{Name: uint16(watchdog.AddrPower), Value: power}})
	if err != nil {
		t.Fatal(err)
	}
	b[0]++
	w.mu.Lock()
	defer w.mu.Unlock()
	w.send(torus.TypeMessage, b)
}
