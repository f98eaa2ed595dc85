package command

import (
	"fmt"

	"google.golang.org/protobuf/types/known/durationpb"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
)

// warnAnswer warns about an answer by its cluster information, or by the fields of the same names that it has itself.
func warnAnswer(a *App, answer any) {
	switch m := answer.(type) {
	case interface{ GetCluster() *lofamov1.ClusterInfo }:
		WarnCluster(a, m.GetCluster())
	case *lofamov1.Node:
		WarnHeld(a, m.GetVerdictsHeld())
		warnStale(a, m)
	case *lofamov1.ListMasksResponse:
		warnStale(a, m)
	}
}

// WarnCluster warns about an incomplete answer: a stale one, with its age, and regions that are cut off. It remembers the kind of cluster
// for App.Words.
func WarnCluster(a *App, c *lofamov1.ClusterInfo) {
	a.Learn(c)
	for _, r := range c.GetRegions() {
		if r.GetState() == lofamov1.State_NORMAL {
			continue
		}
		since := ""
		if r.GetAge() != nil {
			since = " for " + ProtoDuration(r.GetAge())
		}
		a.Warnf("lofamoctl: CUT OFF: region %s has been silent%s: its %s shown as UNKNOWN, the last states are kept until it is back\n",
			Printable(r.GetName()), since, areNodes(int(r.GetNodes())))
	}
	WarnHeld(a, c.GetVerdictsHeld())
	warnStale(a, c)
}

// warnStale warns that an answer may be old.
func warnStale(a *App, m interface {
	GetStale() bool
	GetStaleAge() *durationpb.Duration
}) {
	if !m.GetStale() {
		return
	}
	age := "and has reached none since it started"
	if d := m.GetStaleAge(); d != nil {
		age = "and has reached none for " + ProtoDuration(d)
	}
	a.Warnf("lofamoctl: STALE: this answer comes from a supervisor that reaches no leader, %s: the answer may be that old\n", age)
}

// WarnHeld warns that verdicts wait, so that a shown state may be out of date.
func WarnHeld(a *App, why string) {
	if why != "" {
		a.Warnf("lofamoctl: HELD: %s\n", Printable(why))
	}
}

func areNodes(n int) string {
	if n == 1 {
		return "1 node is"
	}
	return fmt.Sprintf("%d nodes are", n)
}

// BreakerHint is the command that closes the breaker.
const BreakerHint = "lofamoctl response breaker close --reason REASON"

// WarnBreaker warns about an open breaker.
func WarnBreaker(a *App, b *lofamov1.ResponseBreaker) {
	if b.GetOpen() {
		a.Warnf("lofamoctl: BREAKER OPEN since %s: %s: only notifications begin until somebody closes it: "+
			BreakerHint+"\n", a.Clock(b.GetAt()), Printable(b.GetDetail()))
	}
}
