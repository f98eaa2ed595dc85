package express

import (
	"math/bits"
	"slices"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// ask requests pieces of transfers, the highest priority first, and of a lower one only when no pieces of a higher
// one come, or when it has waited for long: data of higher priorities may come without end.
func (m *Data) ask(now time.Time) {
	var order [DataTopics + 1]*transfer
	n := 0
	for i := range m.slots {
		if t := m.slots[i].next; t != nil && !t.whole() {
			order[n] = t
			n++
		}
	}
	slices.SortStableFunc(order[:n], func(a, b *transfer) int { return int(b.prio) - int(a.prio) })
	held := false
	for _, t := range order[:n] {
		if held && now.Sub(t.begun) < m.patience()/2 {
			continue
		}
		m.askFor(now, t)
		held = held || now.Sub(t.progress) < stalled
	}
}

func (m *Data) askFor(now time.Time, t *transfer) {
	if !m.parent(t.parent, t) {
		m.nextParent(t)
	}
	if t.parent < 0 {
		return
	}
	switch due := !t.again.IsZero() && !now.Before(t.again); {
	case due:
		if t.asks >= dataTries {
			m.nextParent(t)
		}
		m.want(now, t, true)
	case t.again.IsZero():
		m.want(now, t, true)
	case t.asked != 0 && bits.OnesCount64(t.asked) <= dataWindow/2 && t.asked|t.have != allPieces(len(t.body)):
		m.want(now, t, false)
	}
}

// parent reports whether the node can ask a neighbour for a datum.
func (m *Data) parent(i int, t *transfer) bool {
	return i >= 0 && m.ways.Good>>i&1 != 0 && m.peers[i].topics[t.id.Topic].has(t)
}

// has reports whether the neighbour announces the datum that a transfer fetches.
func (t *peerTopic) has(of *transfer) bool { return t.id == of.id && t.length == len(of.body) }

// nextParent turns to the next possible parent, or stays with the same one if there is none.
func (m *Data) nextParent(t *transfer) {
	for k := 1; k <= grid.NumDirections; k++ {
		if i := (max(t.parent, 0) + k) % grid.NumDirections; m.parent(i, t) {
			m.turnTo(t, i)
			return
		}
	}
	m.turnTo(t, -1)
}

// turnTo makes the node ask another neighbour from now on; -1 means none.
func (m *Data) turnTo(t *transfer, i int) {
	if i != t.parent {
		m.stats.Parents++
		if t.spoiled > 0 {
			t.have = 0
		}
	}
	t.parent, t.asked, t.asks, t.step, t.again = i, 0, 0, 0, time.Time{}
}

// want asks the parent: again for all that did not come, or for more.
func (m *Data) want(now time.Time, t *transfer, again bool) {
	more := uint64(0)
	if again {
		t.asks++
		more, t.asked = t.asked, 0
	}
	for missing := allPieces(len(t.body)) &^ t.have &^ t.asked &^ more; missing != 0 &&
		bits.OnesCount64(t.asked|more) < dataWindow; missing &= missing - 1 {
		more |= missing & -missing
	}
	t.asked |= more
	if !again {
		t.step = 0
	}
	quiet := min(now.Sub(t.progress)/8, slowest(m.period)) // backs off, with any parent
	t.step = max(2*t.step, 2*m.period, quiet)
	t.again = now.Add(t.step)
	m.stats.Asked++
	m.send(t.parent, &dataFrame{kind: kindWant, id: t.id, flag: again, pieces: more})
}

// onWant handles a neighbour's request. If no piece is here yet, the neighbour learns so, and gets each piece when it
// comes.
func (m *Data) onWant(i int, f *dataFrame) {
	m.peers[i].met = true
	d, have := m.slots[f.id.Topic].find(f.id)
	if d == nil || f.flag && have&f.pieces == 0 {
		m.sayState(i, f.id.Topic, false)
	}
	if d == nil {
		return
	}
	t := &m.peers[i].topics[f.id.Topic]
	if t.wants != f.id || f.flag {
		t.wants, t.pieces = f.id, 0
	}
	t.pieces |= f.pieces & allPieces(len(d.body))
}

func (m *Data) onPiece(now time.Time, i int, f *dataFrame) {
	m.peers[i].met = true
	s := &m.slots[f.id.Topic]
	t := s.next
	if t == nil || t.id != f.id || t.have>>f.index&1 != 0 || (s.wary || t.spoiled > 0) && i != t.parent {
		m.stats.Duplicates++
		return
	}
	if of := &m.peers[i].topics[f.id.Topic]; of.id == t.id && of.length != len(t.body) {
		m.stats.Duplicates++ // neighbours announce different lengths: not a piece of this transfer
		return
	}
	from, to := pieceOf(f.index, len(t.body))
	if to-from != len(f.data) {
		m.out.Bad = true
		m.stats.Bad++
		return
	}
	copy(t.body[from:to], f.data)
	t.have |= 1 << f.index
	t.asked &^= 1 << f.index
	t.asks, t.step, t.progress = 0, 0, now
	if t.again = now.Add(2 * m.period); !t.whole() {
		return
	}
	if sumOf(t.body) == t.id.Sum {
		m.stats.Delivered++
		m.out.Deliver = append(m.out.Deliver, Datum{t.id, t.prio, t.body})
		return
	}
	m.stats.Spoiled++
	t.spoiled++
	if same, other := m.announcers(t); t.spoiled > same && other { // each that announces this length was the only parent once
		m.refuse(s, len(t.body), now.Add(refusedFor))
		return
	}
	t.have = 0
	m.nextParent(t)
	t.again = now.Add(min(m.period<<min(t.spoiled, 16), spoiledLater))
}

// announcers counts the neighbours that the node can ask for the datum of a transfer. other: a neighbour announces another length.
func (m *Data) announcers(t *transfer) (same int, other bool) {
	for i := range m.peers {
		if m.parent(i, t) {
			same++
		}
		of := &m.peers[i].topics[t.id.Topic]
		other = other || of.id == t.id && of.length != len(t.body)
	}
	return same, other
}

// serve sends neighbours the pieces that they want and that are here, the highest priority first.
func (m *Data) serve(now time.Time) {
	m.ways.Open.each(func(i int) {
		p := &m.peers[i]
		for {
			var best *peerTopic
			var of *datum
			var ready uint64
			for k := range p.topics {
				t := &p.topics[k]
				if t.pieces == 0 {
					continue
				}
				d, have := m.slots[k].find(t.wants)
				if d == nil {
					t.pieces = 0
				} else if t.pieces&have != 0 && (best == nil || d.prio > of.prio) {
					best, of, ready = t, d, t.pieces&have
				}
			}
			if best == nil {
				return
			}
			p.pieces.settle(now, dataRate)
			if !p.pieces.has(dataBurst) {
				return
			}
			p.pieces.spent++
			k := bits.TrailingZeros64(ready)
			best.pieces &^= 1 << k
			from, to := pieceOf(k, len(of.body))
			m.stats.Sent++
			m.send(i, &dataFrame{kind: kindPiece, id: of.id, index: k, data: of.body[from:to]})
		}
	})
}

func (m *Data) send(i int, f *dataFrame) {
	size := stateSize
	if f.kind == kindPiece {
		size = pieceHeader + len(f.data)
	}
	m.out.Send = append(m.out.Send, Send{grid.Directions()[i], f.append(make([]byte, 0, size))})
}
