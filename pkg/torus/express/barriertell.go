package express

import (
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// touch has a barrier looked at in this step. A node may know hundreds that are over, and nearly all steps are about
// one.
func (b *Barriers) touch(k *barrier) {
	if !k.inNews {
		k.inNews = true
		b.news = append(b.news, k)
	}
}

// tellAll sends news to neighbours, and remembers those that have not confirmed yet.
func (b *Barriers) tellAll(now time.Time) {
	b.news = slices.DeleteFunc(b.news, func(k *barrier) bool {
		k.inNews = b.all[k.of] == k && b.tell(now, k)
		return !k.inNews
	})
}

// tell sends a barrier's set to the neighbours that are not known to have it, when their turn has come. It asks a
// silent neighbour again after a while, but informs it at once that the barrier is over if it waits for that here. It
// reports whether a neighbour still lacks the set.
func (b *Barriers) tell(now time.Time, k *barrier) (more bool) {
	near := k.up & b.ways.Good
	near &= -near              // one of them
	if near == 0 && !k.place { // cut off from there: around
		near = b.links
	}
	b.ways.Open.each(func(i int) {
		p := &k.peers[i]
		way := p.tells || near>>i&1 == 1
		if !k.news(p) || k.over && !way {
			p.lazy = time.Time{}
			return
		}
		more = true
		if p.lazy.IsZero() {
			p.lazy = now.Add(lazyPeriods * b.period)
		}
		urgent := k.over && !p.toldOver
		if !urgent && (p.asked && now.Before(p.again) || near>>i&1 == 0 && now.Before(p.lazy)) {
			return
		}
		q := &b.buckets[i]
		q.settle(now, barrierRate)
		if !urgent && !q.has(barrierBurst) {
			return
		}
		q.spent = min(q.spent+1, barrierBurst)
		if p.asked && !urgent {
			p.step = min(2*p.step, mostSteps*b.period)
			b.stats.Repeated++
		} else {
			p.step = b.period
			b.stats.Sent++
		}
		p.asked, p.toldOver, p.again = true, k.over, now.Add(p.step)
		b.send(grid.Directions()[i], setFrame{setNews, k.of, k.members, k.arrived, k.gone})
	})
	return more
}

func (k *barrier) complete() bool { return k.arrived.count() == k.members }

// news reports whether a neighbour needs the set.
func (k *barrier) news(p *barrierPeer) bool {
	return p.must || !k.arrived.within(p.has) || !slices.Equal(k.gone, p.gone) && !k.complete()
}

func (b *Barriers) send(d grid.Direction, f setFrame) {
	b.out.Send = append(b.out.Send, Send{d, f.encode()})
}
