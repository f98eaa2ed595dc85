package daemon

import (
	"errors"
	"time"

	"github.com/lofamo/lofamo/internal/agent/half"
)

// openAlarm opens the timer for the checks of the half. rang gets a value when the timer expires, and is closed if the
// timer fails; stop closes both.
func (c *child) openAlarm() (rang <-chan struct{}, stop func(), err error) {
	a, err := half.NewAlarm()
	if err != nil {
		return nil, nil, err
	}
	c.alarm = a
	rings, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		defer close(rings)
		for a.Wait() == nil {
			select {
			case rings <- struct{}{}:
			default: // the loop has not taken the last one
			}
		}
	}()
	return rings, func() {
		_ = a.Close()
		<-ended
	}, nil
}

// errAlarm ends a daemon without a timer: it could not check its halves any more.
var errAlarm = errors.New("wait for the next check of the half: the timer failed")

// setAlarm makes the alarm ring at wake at the latest. Waits of a period or longer end on the daemon's grid of periods, so
// that it wakes once for both halves.
func (c *child) setAlarm(now, wake time.Time) {
	if period := c.d.periods.TRead; wake.Sub(now) >= period {
		wake = wake.Add(-(wake.Sub(c.d.start) % period))
	}
	c.alarm.Rang() // its earlier time no longer counts
	c.alarm.Wake = wake
	c.alarm.Set(now)
}
