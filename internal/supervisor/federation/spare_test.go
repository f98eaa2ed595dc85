package federation

import (
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// TestSpareOfRegion: a region that has replaced a node, unknown to the parent, stays connected.
func TestSpareOfRegion(t *testing.T) {
	p := newParent(t)
	west := newChild(t, "west", 0)
	west.change("n0-0-0", lofamov1.State_NORMAL)
	west.connect(p)
	p.shows(west)
	west.change("spare-1", lofamov1.State_NORMAL)
	delete(west.states, "spare-1")
	west.change("n0-0-0", lofamov1.State_FAILED)
	p.shows(west)
	p.present("west")
	if _, ok := p.states()["spare-1"]; ok {
		t.Error("the parent shows a node at no place that it knows")
	}
	p.lead() // the next leader reads it from the store
	p.shows(west)
}
