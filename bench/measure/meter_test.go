package measure

import (
	"math"
	"os"
	"testing"
	"time"
)

// TestPeakIsHighestWindow plays a burst of one second at two cores into a cost of half a core.
func TestPeakIsHighestWindow(t *testing.T) {
	m := &Meter{}
	begin := time.Unix(1000, 0)
	var used time.Duration
	for i := range 81 { // 20 s, each quarter of a second
		m.sample = append(m.sample, sample{begin.Add(time.Duration(i) * time.Second / 4), []time.Duration{used, time.Hour}})
		rate := 0.5
		if i >= 40 && i < 44 {
			rate = 2
		}
		used += time.Duration(rate * float64(time.Second/4))
	}
	end := begin.Add(20 * time.Second)
	for _, c := range []struct {
		name       string
		have, want float64
	}{
		{"peak of 1 s", m.Peak(begin, end, time.Second, 0), 2},
		{"peak of 2 s", m.Peak(begin, end, 2*time.Second, 0), 1.25},
		{"peak of both groups", m.Peak(begin, end, 2*time.Second, 0, 1), 1.25},
		{"peak of a time that is shorter than the window", m.Peak(begin, begin.Add(time.Second), 2*time.Second, 0), 0.5},
		{"mean before the burst", m.Mean(begin, begin.Add(10*time.Second), 0), 0.5},
		{"mean", m.Mean(begin, end, 0), 0.575},
		{"mean of no time", m.Mean(begin, begin, 0), 0},
		{"peak of no time", m.Peak(begin, begin, time.Second, 0), 0},
	} {
		if math.Abs(c.have-c.want) > 0.001 {
			t.Errorf("%s: %.3f cores: want %.3f", c.name, c.have, c.want)
		}
	}
}

// TestMeterCountsProcess lets this process use a core for some time. Only processor time is compared, because a busy machine
// may let the process or a sample wait.
func TestMeterCountsProcess(t *testing.T) {
	before := ProcessorTime()
	m := NewMeter(20*time.Millisecond, 2, func() []Metered { return []Metered{{PID: os.Getpid(), Group: 1}} }) // takes the first sample
	begin := ProcessorTime()
	for ProcessorTime()-begin < 300*time.Millisecond {
		_ = math.Sqrt(2)
	}
	end := ProcessorTime()
	m.Close()
	m.take(2)
	after := ProcessorTime()
	first, last := m.sample[0].at, m.sample[len(m.sample)-1].at
	const slack = 3 * clockTick // of the user's and the system's time, each at both ends
	have := time.Duration(m.Mean(first, last, 1) * float64(last.Sub(first)))
	if have < end-begin-slack || have > after-before+slack {
		t.Errorf("%s of a core: want %s to %s", have, end-begin, after-before)
	}
	if have := m.Mean(first, last, 0); have != 0 {
		t.Errorf("a group without processes: %.2f of a core: want 0", have)
	}
}
