package half

import (
	"context"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/pki"
)

// Pauses between the handshakes in which a DNP half looks for another one at the other end. They double while nothing answers.
const (
	knockMin = time.Second
	knockMax = time.Minute
)

// aloneAfter is how long a DNP half waits for a session with its host half before it logs a warning.
const aloneAfter = 10 * time.Second

// claimOver is how long a second process must be silent before its claim counts as over.
const claimOver = 10 * time.Second

// droppedEvery is the least time between two lines about dropped frames.
const droppedEvery = time.Minute

// own reports whether a certificate is one of this half.
func (w *Window) own(cert *x509.Certificate) bool {
	c := w.common
	return pki.VerifyPeerIdentity(pki.NodeIdentity(c.Config.Cluster, c.Config.Node, c.Half))(cert) == nil
}

// knock makes handshakes while the DNP half hears no host half. Without them, two DNP halves at the ends of one window would wait
// for each other, in silence.
func (w *Window) knock(ctx context.Context) {
	pause := knockMin
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if !w.silent(time.Now()) {
			pause = knockMin
			continue
		}
		claimed, err := w.link.Knock(ctx, func(cert *x509.Certificate) error {
			if w.own(cert) {
				return nil
			}
			return fmt.Errorf("want the dnp half of node %s", w.common.Config.Node)
		})
		if pause = min(2*pause, knockMax); claimed {
			pause = knockMin
			w.mu.Lock()
			w.core.Claimed(time.Now())
			w.mu.Unlock()
		}
		w.common.Log.Debug("look for another dnp half at the other end of the window", "claimed", claimed, "err", err)
	}
}

func (w *Window) silent(now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.core.Lost(now)
}

// denied returns an error if another process holds or claims this process's place. The caller holds the mutex.
func (w *Window) denied(now time.Time) error {
	h := w.common.Half
	if w.core.Denied(now) {
		return fmt.Errorf("the other kernel already accepts another process of the %s half: stop one of them", h)
	}
	if s, _ := w.core.State(now); s == watchdog.WindowClaimed {
		return fmt.Errorf("the other end, %s, claims to be the %s half as well: run the %s half there, with that half's keys",
			w.link.PeerAddr(), h, h.Other())
	}
	return nil
}

// alone returns an error if this DNP half has had no session for aloneAfter since its start. The caller holds the mutex.
func (w *Window) alone(now time.Time) error {
	if _, live := w.keys.Current(); live || w.common.Half != fault.HalfDNP || now.Sub(w.opened) < aloneAfter {
		return nil
	}
	return fmt.Errorf("the host half at %s does not dial %s: check that it runs, that its window.peer is this address, and that TCP is open",
		w.link.PeerAddr(), w.link.LocalAddr())
}

// frameCounts counts dropped frames since the start.
type frameCounts struct{ repeated, forged, oldSession, damaged, malformed uint64 }

// frameCounts returns the present counts. It runs under the mutex.
func (w *Window) frameCounts() frameCounts {
	s := w.core.Stats()
	return frameCounts{repeated: s.Replays, forged: w.bad[torus.BadMAC].Load(), oldSession: w.bad[torus.BadSession].Load(),
		damaged: w.bad[torus.BadCRC].Load(), malformed: w.bad[torus.BadMalformed].Load() + s.Malformed}
}

// noteDropped logs dropped frames, at most once in droppedEvery. Frames of an old session alone are not worth a line: they follow each
// restart. It runs under the mutex.
func (w *Window) noteDropped(now time.Time) {
	if !w.droppedAt.IsZero() && now.Sub(w.droppedAt) < droppedEvery {
		return
	}
	is, was := w.frameCounts(), w.dropped
	if was.oldSession = is.oldSession; is == was {
		return
	}
	w.dropped, w.droppedAt = is, now
	w.common.Log.Warn("window frames dropped, counted since the start", "forged", is.forged, "damaged", is.damaged, "malformed", is.malformed,
		"old_session", is.oldSession, "repeated", is.repeated)
}
