package orders

import (
	"maps"
	"slices"
	"time"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/servicenet"
)

// Questions to a node that seems to have gone back to an earlier boot epoch.
const (
	backAsks  = 5
	backAgain = 2 * time.Second
	// backPass bounds the questions of one pass: each is a signature.
	backPass = 50
)

// peerEpochs decides which statuses of earlier boot epochs count. Such a status is late or replayed, or the node has lost its state
// directory and has drawn a lower epoch (package storage). So the leader asks the node:
//
//	newest ──status of an earlier epoch──► doubted ──backAsks questions, and another such status──► newest, of that epoch
//	  ▲                                       │
//	  └──a status of the newest epoch, or none─┘
//
// It serves one term. Its zero value is ready. It is not safe for concurrent use.
type peerEpochs struct {
	doubts map[fault.NodeID]*epochDoubt
	back   map[fault.NodeID]fault.Epoch // nodes that went back in this term, to which epoch
}

// epochDoubt is a node with a status of an earlier epoch.
type epochDoubt struct {
	asked int
	next  time.Time // of the next question, or of the end
}

// epochQuestion is a question that is due.
type epochQuestion struct {
	node fault.NodeID
	try  int // from 1
}

// take reports whether a status counts; newest is the newest boot epoch of its node. A waiting spare has no epoch. A node that has lost
// its order may have lost its epoch too.
func (e *peerEpochs) take(now time.Time, newest fault.Epoch, st *lofamov1.PeerStatus) bool {
	id, epoch := fault.NodeID(st.GetNode()), fault.Epoch(st.GetEpoch())
	switch d := e.doubts[id]; {
	case epoch == 0 || st.GetLost():
		return true
	case epoch >= newest:
		delete(e.doubts, id)
		if epoch > newest {
			delete(e.back, id)
		}
		return true
	case servicenet.EpochSupersedes(epoch, newest), d != nil && d.asked == backAsks:
		delete(e.doubts, id)
		if e.back == nil {
			e.back = make(map[fault.NodeID]fault.Epoch)
		}
		e.back[id] = epoch
		return true
	case d == nil:
		if e.doubts == nil {
			e.doubts = make(map[fault.NodeID]*epochDoubt)
		}
		e.doubts[id] = &epochDoubt{next: now}
	}
	return false
}

// wentBack reports whether a status is of an earlier boot epoch than others of its node, and counts.
func (e *peerEpochs) wentBack(st *lofamov1.PeerStatus) bool {
	epoch, back := e.back[fault.NodeID(st.GetNode())]
	return back && epoch == fault.Epoch(st.GetEpoch())
}

// questions returns the questions that are due.
func (e *peerEpochs) questions(now time.Time) (due []epochQuestion) {
	for _, id := range slices.Sorted(maps.Keys(e.doubts)) {
		switch d := e.doubts[id]; {
		case now.Before(d.next) || len(due) == backPass:
		case d.asked == backAsks:
			delete(e.doubts, id)
		default:
			d.asked++
			d.next = now.Add(backAgain)
			due = append(due, epochQuestion{id, d.asked})
		}
	}
	return due
}
