package half

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	lofamov1 "github.com/lofamo/lofamo/api/lofamo/v1"
	"github.com/lofamo/lofamo/pkg/selftest"
	"github.com/lofamo/lofamo/pkg/sensor"
	"github.com/lofamo/lofamo/pkg/watchdog"

	"github.com/lofamo/lofamo/internal/agent/bundle"
	"github.com/lofamo/lofamo/internal/agent/half/halfcore"
	"github.com/lofamo/lofamo/internal/agent/mailbox"
	"github.com/lofamo/lofamo/internal/failpoint"
)

// Loop is the part of a running half that both halves share: the timer with its tick and the work of each second, and
// the goroutines for mailbox, sensors, probes, orders to act, large objects and certificates. Its functions are the
// part that differs.
type Loop struct {
	*Common
	Mu      *Guard // the half's one mutex
	Alarm   *Alarm
	Page    *Page
	Box     *mailbox.Box
	Core    Core
	Status  *Status
	Readers *Readers
	Probes  *Prober
	Acting  Actions
	Bulk    *bundle.Server
	Sources []sensor.Source
	Inject  http.Handler // serves fault injection at InjectSocket, where the configuration allows it

	InjectSocket string

	// The loop calls these four under the mutex.
	Tick       func(now time.Time)                           // steps the machine and sets the alarm
	Mended     func(now time.Time)                           // follows a repair of the register file
	Spent      func(now time.Time, total time.Duration)      // steps the machine by the processor time used so far
	EachSecond func(now time.Time, own *lofamov1.HalfHealth) // own is the half's report of its health; nil: none

	// The loop calls these without the mutex, each in a goroutine of its own.
	OnMail       func(mailbox.Message)
	OnReadings   func([]sensor.Reading)
	OnTest       func(selftest.Event)
	TrustChanged func()

	sensors   *sensor.Set // of Sources
	readings  chan time.Time
	sensorsAt time.Time // when the sensors are to be read again
	secondAt  time.Time // when Spent and EachSecond are due
}

// Core is what the loop reads of a half's machine, under the mutex.
type Core interface {
	SelfTest() *selftest.Machine
	Verdict() watchdog.Verdict
	Budget() *halfcore.Budget
}

// Start runs the loop in the group until ctx ends or one of its goroutines fails.
func (l *Loop) Start(ctx context.Context, g *errgroup.Group) {
	l.sensors, l.readings = sensor.NewSet(l.Sources), make(chan time.Time, 1)
	l.sensors.Resume(l.Copy.Sensors)
	l.Mu.Lock()
	l.sensorsAt = l.Alarm.Wake.Add(l.Periods.SensorPeriod) // aligned with the ticks
	l.Alarm.AlsoRing(l.sensorsAt, l.Periods.SensorPeriod)
	l.Mu.Unlock()
	g.Go(func() error { return l.ring(ctx) })
	g.Go(func() error { l.Trust.Run(ctx, l.TrustChanged); return nil })
	g.Go(func() error { return l.Box.Run(ctx, l.receive) })
	g.Go(func() error { return l.Bulk.Run(ctx) })
	g.Go(func() error { l.Probes.Run(ctx, l.OnTest); return nil })
	g.Go(func() error { l.Acting.Run(ctx, l.Config.StateDir); return nil })
	g.Go(func() error {
		return l.sensors.Run(ctx, l.readings, l.Periods.SensorPeriod, func(rs []sensor.Reading) {
			l.Copy.keepReadings(l.Log, rs) // before a report of them leaves
			l.OnReadings(rs)
		})
	})
	if l.Config.Injection {
		g.Go(func() error { return ServeUnix(ctx, l.StatePath(l.InjectSocket), l.Inject) })
	}
}

// receive handles a mailbox message.
func (l *Loop) receive(m mailbox.Message) {
	l.Readers.Mail.Begin()
	defer l.Readers.Mail.End()
	for range failpoint.Packet(failpoint.MailReceive, m.Payload) {
		l.OnMail(m)
	}
}

// ring is the timer's goroutine. It returns an error if the timer fails before ctx ends.
func (l *Loop) ring(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = l.Alarm.Close() })()
	for {
		if err := l.Alarm.Wait(); ctx.Err() != nil {
			l.Manager.Stopping()
			return nil
		} else if err != nil {
			return err
		}
		l.Mu.Lock()
		now := time.Now()
		l.Alarm.Rang()
		l.readSensors(now)
		if now.Before(l.Alarm.Wake) { // the alarm rang at a time of AlsoRing
			l.Alarm.Set(now)
			l.Mu.Unlock()
			continue
		}
		l.maintain(now)
		l.Tick(now)
		l.NoteProven(l.Page, l.Core.SelfTest().Proving())
		l.Mu.Unlock()
		l.Manager.Round(now)
	}
}

// readSensors requests a reading of the sensors if it is due.
func (l *Loop) readSensors(now time.Time) {
	if now.Before(l.sensorsAt) {
		return
	}
	l.sensorsAt = rhythm{l.sensorsAt, l.Periods.SensorPeriod}.after(now)
	select {
	case l.readings <- now:
	default: // the last request still waits
	}
}

// maintain does once a second the work that no event triggers.
func (l *Loop) maintain(now time.Time) {
	if l.Page.Maintain(now) {
		l.Log.Info("register file repaired")
		l.Mended(now)
	}
	l.MaintainCopy(now)
	if now.Before(l.secondAt) {
		return
	}
	l.secondAt = now.Add(CheckEvery)
	l.Spent(now, ProcessorTime())
	l.sensors.Rarer(l.Core.Budget().Level().Sensors())
	l.Trust.Wake()
	l.NoteWrong(l.Page, l.Readers.Stuck(otherThreadWaits), l.Core.SelfTest().Results(now))
	l.TellManager(l.Core.Verdict(), l.Core.SelfTest())
	own, tell := l.Status.Look(now)
	if tell {
		TellOther(l.Box, own)
	}
	l.EachSecond(now, own)
}
