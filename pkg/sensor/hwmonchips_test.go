package sensor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/sensor/source"
	"github.com/lofamo/lofamo/pkg/sensor/source/sourcetest"
)

// writeChips writes a server's usual chips: a processor, a disk, a power supply, and a board controller.
func writeChips(tb testing.TB, root string) {
	tb.Helper()
	set := func(chip int, file string, value any) {
		sourcetest.Write(tb, root, fmt.Sprintf("class/hwmon/hwmon%d/%s", chip, file), fmt.Sprint(value))
	}
	for chip, name := range []string{"k10temp", "nvme", "pmbus", "nct6775"} {
		set(chip, "name", name)
		set(chip, "power/control", "auto") // every device has this directory
		for i := 1; i <= 3; i++ {
			temp := fmt.Sprintf("temp%d", i)
			set(chip, temp+"_label", fmt.Sprintf("Sensor %d", i))
			set(chip, temp+"_input", 40000+i)
			set(chip, temp+"_max", 80000)
			set(chip, temp+"_crit", 90000)
		}
	}
	for i := range 8 {
		in := fmt.Sprintf("in%d", i)
		set(3, in+"_input", 1000+i)
		set(3, in+"_min", 900)
		set(3, in+"_max", 1100)
	}
	set(2, "power1_input", 150000000)
	set(2, "power1_max", 250000000)
}

func hwmonSources(tb testing.TB, root string) []Source {
	tb.Helper()
	cfg := DefaultConfig()
	cfg.Sysfs = root
	sources, err := DNPSources(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return sources
}

// BenchmarkHwmon reads temperature, power and voltage of a server.
func BenchmarkHwmon(b *testing.B) {
	root := b.TempDir()
	writeChips(b, root)
	sources := hwmonSources(b, root)
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range sources {
			if r, err := s.Read(b.Context()); err != nil || r.State != fault.Normal {
				b.Fatalf("%s: %+v, %v", s.Name(), r, err)
			}
		}
	}
}

// TestSensorsShareListing: a listing of the chips serves all quantities, and several readings.
func TestSensorsShareListing(t *testing.T) {
	root := t.TempDir()
	writeChips(t, root)
	sources := hwmonSources(t, root)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	for _, dir := range []string{"", "hwmon0", "hwmon1", "hwmon2", "hwmon3"} {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(root, "class/hwmon", dir), unix.IN_OPEN|unix.IN_ONLYDIR); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		for _, s := range sources {
			if r, err := s.Read(t.Context()); err != nil || r.State != fault.Normal {
				t.Fatalf("%s: %+v, %v", s.Name(), r, err)
			}
		}
	}
	// An event of a directory itself has no name: its size is that of the header.
	listed, buf := 0, make([]byte, 1<<16)
	n, err := unix.Read(fd, buf)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < n; {
		size := int(buf[at+12]) | int(buf[at+13])<<8
		if size == 0 {
			listed++
		}
		at += unix.SizeofInotifyEvent + size
	}
	if listed != 5 {
		t.Errorf("%d listings of 5 directories: want one each", listed)
	}
}

// TestNewSensorIsFoundWithinListEvery: an input that appears counts after at most listEvery, one that disappears at the next reading, and
// its successor after that.
func TestNewSensorIsFoundWithinListEvery(t *testing.T) {
	root, now := t.TempDir(), time.Unix(1000, 0)
	all := &chips{sys: source.Root(root), every: listEvery, clock: func() time.Time { return now }}
	src := newHwmon(HwmonConfig{Sysfs: root, Quantity: Temperature, Bounds: NoBounds()}, all)
	read := func(when string, want fault.State, value float64) {
		t.Helper()
		r, err := src.Read(t.Context())
		if err != nil || r.State != want || r.Value != value {
			t.Errorf("%s: %+v, %v: want %s, %g", when, r, err, want, value)
		}
	}
	set := func(file, value string) {
		t.Helper()
		sourcetest.Write(t, root, "class/hwmon/"+file, value)
	}
	read("no chip", fault.Unknown, 0)
	set("hwmon0/name", "lm75")
	set("hwmon0/temp1_input", "50000")
	set("hwmon0/temp1_max", "80000")
	now = now.Add(listEvery)
	read("a chip after listEvery", fault.Normal, 50)
	set("hwmon0/temp2_input", "85000")
	set("hwmon0/temp2_max", "80000")
	set("hwmon0/temp1_input", "51000")
	now = now.Add(listEvery - 1)
	read("a new input before listEvery", fault.Normal, 51)
	now = now.Add(1)
	read("a new input after listEvery", fault.Sick, 85)
	if err := os.RemoveAll(filepath.Join(root, "class/hwmon/hwmon0")); err != nil {
		t.Fatal(err)
	}
	set("hwmon1/name", "lm75")
	set("hwmon1/temp1_input", "52000")
	set("hwmon1/temp1_max", "80000")
	read("its chip is gone", fault.Unknown, 0)
	read("it is back under another number", fault.Normal, 52)
}

// TestBlockedLabelStopsOnlyItsSensor: a driver that blocks a reader of a label delays neither other quantities nor sensors that exclude its
// chip.
func TestBlockedLabelStopsOnlyItsSensor(t *testing.T) {
	root := t.TempDir()
	writeChips(t, root)
	sourcetest.Write(t, root, "class/hwmon/hwmon4/name", "blocked")
	sourcetest.Write(t, root, "class/hwmon/hwmon4/temp1_input", "40000")
	label := filepath.Join(root, "class/hwmon/hwmon4/temp1_label")
	if err := unix.Mkfifo(label, 0o600); err != nil {
		t.Fatal(err)
	}
	all := &chips{sys: source.Root(root), every: listEvery, clock: time.Now}
	read := func(q Quantity, chip string) <-chan error {
		s, done := newHwmon(HwmonConfig{Sysfs: root, Quantity: q, Chip: chip, Bounds: NoBounds()}, all), make(chan error, 1)
		go func() {
			r, err := s.Read(t.Context())
			if err == nil && r.State != fault.Normal {
				err = fmt.Errorf("%+v", r)
			}
			done <- err
		}()
		return done
	}
	blocked := read(Temperature, "")
	for _, done := range []<-chan error{read(Temperature, "k10temp"), read(Voltage, ""), read(Power, "")} {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(5 * time.Second):
			t.Error("a sensor waits for a label that it does not need")
		}
	}
	for { // a writer ends the wait of each reader
		w, err := os.OpenFile(label, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if err == nil {
			_ = w.Close()
		}
		select {
		case err := <-blocked:
			if err != nil {
				t.Error(err)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}
