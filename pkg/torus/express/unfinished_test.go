package express

import (
	"testing"
	"time"

	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// lie makes node 0 a liar: it serves nothing, and announces a newer datum of each topic to all neighbours once an interval, with one
// piece. Then it sends one more piece every drip.
func (w *world) lie(claim uint64, every, drip time.Duration, topics ...Topic) {
	liar := w.nodes[0]
	liar.m = nil // the honest half is gone
	number := uint64(1 << 60)
	say := func(f dataFrame) {
		for _, d := range w.dims.Links() {
			w.carry(liar, Send{d, f.append(nil)}, func(to *station, ev *Received) { w.stepData(to, ev) })
		}
	}
	var next, more func(n uint64, k int)
	more = func(n uint64, k int) {
		if n != number {
			return
		}
		for _, topic := range topics {
			say(dataFrame{kind: kindPiece, id: DataID{Topic: topic, Number: n}, index: k, data: make([]byte, DataPiece)})
		}
		if k < 62 {
			w.after(drip, func() { more(n, k+1) })
		}
	}
	next = func(n uint64, _ int) {
		number = n
		for _, topic := range topics {
			id := DataID{Topic: topic, Number: n}
			say(dataFrame{kind: kindState, id: id, prio: MaxPriority, flag: true, length: MaxData, pieces: claim})
		}
		more(n, 0)
		w.after(every, func() { next(n+1, 0) })
	}
	next(number, 0)
}

// A liar that announces newer data without end, which no node has, delays real data and does not keep it out.
func TestUnfinishedDataOnlyDelayOthers(t *testing.T) {
	for i, tc := range []struct {
		name        string
		dims        grid.Dims
		claim       uint64
		every, drip time.Duration
		topics      []Topic
		known       bool // the nodes have a datum already
	}{
		{"once a second", grid.Dims{X: 4, Y: 4, Z: 1}, 1, time.Second, time.Hour, []Topic{TopicMask}, false},
		{"once a second, after a datum", grid.Dims{X: 4, Y: 4, Z: 1}, 1, time.Second, time.Hour, []Topic{TopicMask}, true},
		{"as whole", grid.Dims{X: 3, Y: 3, Z: 3}, 1<<64 - 1, time.Second, time.Hour, []Topic{TopicMask}, false},
		{"rarely, with pieces", grid.Dims{X: 5, Y: 3, Z: 1}, 1<<64 - 1, 50 * time.Second, 800 * time.Millisecond, []Topic{TopicMask}, true},
		{"other topics", grid.Dims{X: 4, Y: 4, Z: 1}, 1, time.Second, 300 * time.Millisecond, []Topic{TopicJob, TopicFlow, DataTopics}, false},
		{"all topics", grid.Dims{X: 4, Y: 2, Z: 2}, 1<<64 - 1, 3 * time.Second, 800 * time.Millisecond, []Topic{TopicMask, TopicManage}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w := newDataWorld(tc.dims, uint64(i))
			w.loss, w.jitter = 0.05, 2*time.Millisecond
			w.begin().run(time.Second)
			if tc.known {
				w.publish(t, w.nodes[5], TopicMask, 3, 1, w.body(900))
				w.run(time.Second)
			}
			w.lie(tc.claim, tc.every, tc.drip, tc.topics...)
			w.run(3 * time.Second)
			// The first datum waits until the nodes have noticed, the next ones only for the liar's turns.
			for k, wait := range []time.Duration{35 * time.Second, 25 * time.Second, 25 * time.Second} {
				body := w.body(MaxData)
				id := w.publish(t, w.nodes[7+k], TopicMask, 3, uint64(10+k), body)
				w.run(wait)
				var missing []grid.Coord
				for rank, n := range w.nodes[1:] {
					if !n.has(id, body) {
						missing = append(missing, w.dims.At(rank+1))
					}
				}
				if len(missing) > 0 {
					t.Errorf("datum %d is missing after %s at %v", k, wait, missing)
				}
			}
		})
	}
}

// A liar that publishes whole data without end, which all others refuse, delays real data and does not keep it out.
func TestRefusedDataOnlyDelayOthers(t *testing.T) {
	w := newDataWorld(grid.Dims{X: 4, Y: 4, Z: 1}, 5)
	w.loss = 0.05
	for _, n := range w.nodes[1:] {
		n.doubts = func(d Datum) bool { return d.Number >= 1<<60 }
	}
	w.begin().run(time.Second)
	liar := w.nodes[0]
	number := uint64(1 << 60)
	var lie func()
	lie = func() {
		number++
		w.publish(t, liar, TopicMask, MaxPriority, number, w.body(MaxData))
		w.after(300*time.Millisecond, lie)
	}
	lie()
	for k := range 3 {
		w.run(8 * time.Second)
		body := w.body(MaxData)
		id := w.publish(t, w.nodes[7+k], TopicMask, 3, uint64(10+k), body)
		w.run(25 * time.Second)
		for rank, n := range w.nodes[1:] {
			if !n.has(id, body) {
				t.Errorf("%s has not got datum %d", w.dims.At(rank+1), k)
			}
		}
	}
}
