package local

import (
	"testing"
	"time"
)

// TestRefusedCallsCloseConnectionOnlyInAFlood: a user's surplus calls are refused, and leave his other calls alone, unless there are
// thousands a second.
func TestRefusedCallsCloseConnectionOnlyInAFlood(t *testing.T) {
	c, now := newCalls(), time.Now()
	var served, refused int
	for {
		may, floods := c.mayBegin(now, 1001)
		if floods {
			break
		}
		if may {
			served++
		} else {
			refused++
		}
	}
	if served != 2000 || refused != 4000 {
		t.Errorf("%d calls served, %d refused before the connection ends: want 2000 and 4000", served, refused)
	}
	if may, _ := c.mayBegin(now, 1002); !may {
		t.Error("another user's call is refused")
	}
	if may, floods := c.mayBegin(now.Add(time.Second), 1001); !may || floods {
		t.Error("a call a second later is refused")
	}
}
