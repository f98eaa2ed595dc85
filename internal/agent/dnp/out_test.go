package dnp

import (
	"context"
	"sync"
	"testing"

	"github.com/lofamo/lofamo/pkg/torus/express"

	"github.com/lofamo/lofamo/internal/agent/dnp/dnpcore"
)

// While a datum's signatures are verified, handing over another datum does not block, because that happens under the
// half's mutex, which heartbeats need too. Of the data that arrive meanwhile, the newest is verified next.
func TestDataIsVerifiedAside(t *testing.T) {
	var mu sync.Mutex // the half's
	judges := make(newest[dnpcore.JudgeData], 1)
	begun, verified := make(chan uint64), make(chan struct{})
	stepped := make(chan uint64, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		openAll(ctx, judges, func(j dnpcore.JudgeData) dnpcore.DataOpened {
			begun <- j.ID.Number
			<-verified
			return dnpcore.DataOpened{ID: j.ID}
		}, func(ev dnpcore.Event) {
			mu.Lock()
			defer mu.Unlock()
			stepped <- ev.(dnpcore.DataOpened).ID.Number
		})
	})
	hand := func(number uint64) {
		mu.Lock()
		defer mu.Unlock()
		judges.put(dnpcore.JudgeData{ID: express.DataID{Topic: express.TopicMask, Number: number}})
	}
	hand(1)
	if n := <-begun; n != 1 {
		t.Errorf("it begins with %d", n)
	}
	hand(2) // it would hang here
	hand(3)
	verified <- struct{}{}
	if n := <-stepped; n != 1 {
		t.Errorf("%d is verified: want 1", n)
	}
	if n := <-begun; n != 3 {
		t.Errorf("it goes on with %d: want 3", n)
	}
	verified <- struct{}{}
	if n := <-stepped; n != 3 {
		t.Errorf("%d is verified: want 3", n)
	}
	cancel()
	done.Wait()
}
