package command

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lofamo/lofamo/client"
)

// Attend warns when no supervisor answers any more, and says when one answers again, until the caller calls stop. Each live view attends
// its supervisors: without them it prints nothing, as it does when nothing changes.
func (a *App) Attend(ctx context.Context, s Session) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Contact(ctx, func(c client.Contact) {
			since := a.Clock(timestamppb.New(c.Since))
			if c.Lost {
				a.Warnf("lofamoctl: BLIND since %s: no supervisor answers (%s): what stands above is the state of that time, and later changes "+
					"are not known\n", since, strings.Join(s.Targets(), ", "))
				return
			}
			a.Warnf("lofamoctl: supervisor %s answers: the view was blind for %s, since %s, and goes on\n", c.Supervisor,
				Duration(time.Since(c.Since)), since)
		})
	}()
	return func() { cancel(); <-done }
}
