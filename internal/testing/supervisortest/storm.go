package supervisortest

import (
	"fmt"
	"sync"
	"testing"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/fault"
)

// OwnComponents are the components whose state a half reports with authority.
var OwnComponents = []fault.Component{
	fault.ComponentDNPCore, fault.ComponentServiceNetwork, fault.ComponentMemory, fault.ComponentPeripheral0,
	fault.ComponentPeripheral1, fault.ComponentTemperature, fault.ComponentPower, fault.ComponentVoltage,
}

// Storm makes every node report each of its components sick, one report each, and calls between after half of the reports.
// It returns when all are committed.
func (c *Cluster) Storm(t testing.TB, targets []string, between func()) {
	t.Helper()
	var wg sync.WaitGroup
	half := make(chan struct{})
	var once sync.Once
	for _, a := range c.Agents {
		wg.Go(func() {
			for i, comp := range OwnComponents {
				id, b := a.Report(t, fault.HalfHost, false, fault.Observation{Component: comp, State: fault.Sick, Kind: fault.KindSelf})
				a.Deliver(t, id, b, targets...)
				if i == len(OwnComponents)/2 {
					once.Do(func() { close(half) })
				}
			}
		})
	}
	<-half
	between()
	wg.Wait()
}

// CheckStorm checks that a list of events has every change of the storm once.
func (c *Cluster) CheckStorm(t testing.TB, what string, events []*lofamov1.Event) {
	t.Helper()
	count := make(map[string]int)
	for _, ev := range events {
		if ev.GetTo() == lofamov1.State_SICK && ev.GetComponent() != "node" {
			count[ev.GetNode()+" "+ev.GetComponent()]++
		}
	}
	for id := range c.Agents {
		for _, comp := range OwnComponents {
			if n := count[fmt.Sprint(id, " ", comp)]; n != 1 {
				t.Errorf("%s: %s %s became SICK %d times", what, id, comp, n)
			}
		}
	}
}
