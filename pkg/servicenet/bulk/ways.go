package bulk

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/fault"
)

// settled is after how many chunks a way counts as good again.
const settled = 64

// ways tracks which way is used, how wide its window is and how long its answers take.
//
// The window grows by one for each chunk up to the threshold, then by one for each window of chunks; a
// loss halves it, at most once for each window; silence and a change of the way bring it to the least.
type ways struct {
	cfg     *ReceiverConfig
	list    []wayState
	current int
	changes uint64

	window       float64
	threshold    float64
	recover      uint64 // losses among chunks pulled up to this order have halved the window already
	srtt, rttvar time.Duration
}

type wayState struct {
	way    Way
	fails  int       // in a row
	retry  time.Time // not again before
	probe  time.Time // not asked again before
	chunks int       // since the switch to this way
}

func newWays(cfg *ReceiverConfig, list []Way) ways {
	w := ways{cfg: cfg}
	for _, l := range list {
		w.list = append(w.list, wayState{way: l})
	}
	w.restart()
	return w
}

// restart forgets the window and the round trips, and not which way works.
func (w *ways) restart() {
	w.window, w.threshold, w.recover = float64(w.cfg.MinWindow), float64(w.most()), 0
	w.srtt, w.rttvar = 0, 0
}

func (w *ways) way() Way { return w.list[w.current].way }

func (w *ways) most() int {
	if w.way().Via != "" {
		return w.cfg.MaxTorus
	}
	return w.cfg.MaxDirect
}

// limit returns how many chunks may be in flight.
func (w *ways) limit() int { return int(w.window) }

// become changes the way.
func (w *ways) become(i int) {
	if i == w.current {
		return
	}
	w.current = i
	w.list[i].chunks = 0
	w.changes++
	w.restart()
}

// next switches to the next way, in turn.
func (w *ways) next() { w.become((w.current + 1) % len(w.list)) }

// fail leaves a way that has fallen silent, and comes back later each time.
func (w *ways) fail(now time.Time) {
	s := &w.list[w.current]
	s.retry = now.Add(backoff(w.cfg.ReturnAfter, s.fails, w.cfg.MaxReturn))
	s.fails++
	w.next()
}

// answered notes an announcement by a way: the first selects the way, and later ones bring the transfer back to a
// better way that was abandoned long enough ago.
func (w *ways) answered(now time.Time, by Way, first bool) {
	i := slices.IndexFunc(w.list, func(s wayState) bool { return s.way == by })
	if i >= 0 && (first || i < w.current && !now.Before(w.list[i].retry)) {
		w.become(i)
	}
}

// probes returns the better ways that are due for a probe, and postpones their next turn: an answer, if any, comes
// before that.
func (w *ways) probes(now time.Time) []Way {
	var out []Way
	for i := range w.list[:w.current] {
		s := &w.list[i]
		if s.retry.IsZero() { // passed over in the beginning
			s.retry = now.Add(w.cfg.ReturnAfter)
		}
		if !now.Before(s.retry) && !now.Before(s.probe) {
			s.probe = now.Add(backoff(w.cfg.ReturnAfter, s.fails, w.cfg.MaxReturn))
			out = append(out, s.way)
		}
	}
	return out
}

// nextProbe returns when probes has work again; zero when the best way is used.
func (w *ways) nextProbe() time.Time {
	var at time.Time
	for _, s := range w.list[:w.current] {
		if t := fault.Later(s.retry, s.probe); at.IsZero() || t.Before(at) {
			at = t
		}
	}
	return at
}

// arrived notes a chunk. lost is the highest order among those that now count as lost, 0 when none
// does; order is that of the last chunk pulled.
func (w *ways) arrived(by Way, sample time.Duration, lost, order uint64) {
	if by != w.way() {
		return // a late one by the way that was left
	}
	s := &w.list[w.current]
	s.chunks++
	if s.chunks == settled {
		s.fails = 0
	}
	if sample > 0 {
		w.measure(sample)
	}
	switch {
	case lost > w.recover:
		w.halve(order)
	case lost > 0: // halved for these already
	case w.window < w.threshold:
		w.window++
	default:
		w.window += 1 / w.window
	}
	w.window = min(w.window, float64(w.most()))
}

// halve answers a loss.
func (w *ways) halve(order uint64) {
	w.recover = order
	w.window = max(float64(w.cfg.MinWindow), w.window/2)
	w.threshold = w.window
}

// collapse answers silence.
func (w *ways) collapse(order uint64) {
	w.threshold = max(float64(w.cfg.MinWindow), w.window/2)
	w.window, w.recover = float64(w.cfg.MinWindow), order
}

// measure smooths the round trip as TCP does (RFC 6298 §2).
func (w *ways) measure(d time.Duration) {
	if w.srtt == 0 {
		w.srtt, w.rttvar = d, d/2
		return
	}
	w.rttvar += ((w.srtt - d).Abs() - w.rttvar) / 4
	w.srtt += (d - w.srtt) / 8
}

// timeout returns how long to wait for an answer, doubled so many times.
func (w *ways) timeout(doublings int) time.Duration {
	t := w.cfg.RequestTimeout // no sample yet
	if w.srtt > 0 {
		t = max(w.srtt+4*w.rttvar, w.cfg.MinTimeout)
	}
	return backoff(t, doublings, w.cfg.MaxTimeout)
}

// backoff doubles d n times, to at most the given.
func backoff(d time.Duration, n int, most time.Duration) time.Duration {
	for ; n > 0 && d < most; n-- {
		d *= 2
	}
	return min(d, most)
}
