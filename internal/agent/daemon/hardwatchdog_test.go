package daemon

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lofamo/lofamo/internal/agent/daemon/recovery"
	"github.com/lofamo/lofamo/internal/agent/peers"
	"github.com/lofamo/lofamo/internal/agent/storage"
	"github.com/lofamo/lofamo/internal/config"
	"github.com/lofamo/lofamo/pkg/fault"
	"github.com/lofamo/lofamo/pkg/torus/grid"
)

// fakeWatchdog is a watchdog device that records its use.
type fakeWatchdog struct {
	seconds, offers int // offers: the device's only time-out; 0: any
	armed           bool
	held            bool // by a daemon: the kernel lets no second one open it
	opened, fed     int
	disarmsOnClose  bool
	noWayOut        bool // it stays armed when it is closed
}

func (d *fakeWatchdog) open(string) (watchdogDevice, error) {
	if d.held {
		return nil, unix.EBUSY
	}
	d.armed, d.held = true, true
	d.opened++
	return d, nil
}

func (d *fakeWatchdog) wayOut(string) error {
	if d.noWayOut {
		return errors.New("no way out")
	}
	return nil
}

func (d *fakeWatchdog) SetTimeout(s int) error {
	if d.seconds = s; d.offers != 0 {
		d.seconds = d.offers
	}
	return nil
}
func (d *fakeWatchdog) Timeout() (int, error) { return d.seconds, nil }
func (d *fakeWatchdog) KeepAlive() error      { d.fed++; return nil }
func (d *fakeWatchdog) Identity() string      { return "fake" }
func (d *fakeWatchdog) DisarmsOnClose() bool  { return d.disarmsOnClose }
func (d *fakeWatchdog) Disarm() error         { d.armed, d.held = d.noWayOut, false; return nil }
func (d *fakeWatchdog) Close() error          { d.held = false; return nil }

// fed is a daemon that feeds a device, with the halves that it looks at.
type fed struct {
	*hardware
	device *fakeWatchdog
	now    time.Time
	stores uint32
	stated []bool // the statements that the host half got
}

const thisBoot = "00112233445566778899aabbccddeeff"

func newFed(dir string, d *fakeWatchdog, contact time.Duration) *fed {
	f := &fed{device: d, now: time.Unix(1_800_000_000, 0)}
	f.hardware = &hardware{
		log: slog.New(slog.DiscardHandler), stateDir: dir, boot: thisBoot, openDevice: d.open, wayOut: d.wayOut,
		now:  func() time.Time { return f.now },
		tell: func(armed bool) { f.stated = append(f.stated, armed) },
		cfg: config.HardwareWatchdogConfig{
			Device: os.DevNull, Timeout: config.Duration(10 * time.Second), ContactWithin: config.Duration(contact), AllowNoWayOut: true,
		},
	}
	f.begin()
	return f
}

// look takes a look a second later. The halves have written words; linked: a link works.
func (f *fed) look(linked bool) {
	f.now, f.stores = f.now.Add(hardwareLook), f.stores+1
	f.feed(f.now, recovery.FenceLook{Readable: [2]bool{true, true}, Stores: [2]uint32{f.stores, f.stores}, Links: linked})
}

// keptContact waits until the last contact is recorded: a look on a busy machine may give up before.
func (f *fed) keptContact(t *testing.T) {
	t.Helper()
	if !f.contacts.Flush(checkBound) {
		t.Fatal("the last contact is not recorded")
	}
	if done := f.recorded.Load(); done != nil {
		f.feeder.Kept(*done)
	}
}

func exists(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestWatchdogIsStatedWhenArmedAndBeforeDisarmed: the host half states an armed device only once it is open, and takes that back before
// the daemon disarms it. The record that it is armed stands exactly while it is.
func TestWatchdogIsStatedWhenArmedAndBeforeDisarmed(t *testing.T) {
	dir, d := t.TempDir(), &fakeWatchdog{}
	f := newFed(dir, d, 30*time.Second)
	f.look(false)
	f.look(false)
	if d.armed || len(f.stated) > 0 || exists(t, f.path(armedFile)) {
		t.Fatalf("armed %t, stated %v before the first contact", d.armed, f.stated)
	}
	f.look(true)
	if !d.armed || d.opened != 1 || d.seconds != 10 || !slices.Equal(f.stated, []bool{true}) || !exists(t, f.path(armedFile)) {
		t.Fatalf("%+v, stated %v", d, f.stated)
	}
	tell := f.tell
	f.tell = func(armed bool) {
		if !armed && !d.armed {
			t.Error("the device is disarmed before the statement is taken back")
		}
		tell(armed)
	}
	if f.end(true); d.armed || !slices.Equal(f.stated, []bool{true, false}) || exists(t, f.path(armedFile)) {
		t.Errorf("after an announced stop: armed %t, stated %v, record %t", d.armed, f.stated, exists(t, f.path(armedFile)))
	}
}

// TestUnannouncedStopLeavesDeviceArmed: no supervisor knows that the node stops, so others may wait for its reset. Without self-fencing,
// no response rests on the device, and it is disarmed.
func TestUnannouncedStopLeavesDeviceArmed(t *testing.T) {
	for _, contact := range []time.Duration{0, 30 * time.Second} {
		dir, d := t.TempDir(), &fakeWatchdog{}
		f := newFed(dir, d, contact)
		for range 3 {
			f.look(true)
		}
		if f.end(false); d.armed != (contact > 0) || exists(t, f.path(armedFile)) != d.armed || f.stated[len(f.stated)-1] != d.armed {
			t.Errorf("contactWithin %s: armed %t, record %t, stated %v", contact, d.armed, exists(t, f.path(armedFile)), f.stated)
		}
	}
}

// TestSameProcessFeedsDeviceAgain: a node that gets another place, or whose state directory was deleted, goes on in the same process.
// It must feed the device that it has left armed at once, because the halves and their contact may take longer than the time-out.
func TestSameProcessFeedsDeviceAgain(t *testing.T) {
	for name, deleted := range map[string]bool{"at another place": false, "in another state directory": true} {
		dir, d := filepath.Join(t.TempDir(), "state"), &fakeWatchdog{}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		f := newFed(dir, d, 30*time.Second)
		for range 3 {
			f.look(true)
		}
		f.keptContact(t)
		if deleted {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}
		f.end(false)
		f.keptContact(t)
		again, fed := newFed(dir, d, 40*time.Second), d.fed
		again.look(false)
		if d.opened != 2 || d.fed == fed {
			t.Errorf("%s: opened %d times, fed %d times afterwards: want the armed device opened again and fed", name, d.opened, d.fed-fed)
		}
		if within := again.feeder.ContactWithin(); within != 30*time.Second {
			t.Errorf("%s: contactWithin is %s: want the stated 30s", name, within)
		}
	}
}

// TestDeviceStaysAsStrictAsStated: supervisors rely on the strictest settings that a daemon of this boot has stated. A later daemon feeds
// the device by these, although its configuration is laxer.
func TestDeviceStaysAsStrictAsStated(t *testing.T) {
	for _, tt := range []struct {
		name                 string
		first, second, third time.Duration
		earlier              bool // the first daemon is of an earlier version, which records no settings
	}{
		{name: "stricter in between", first: 60 * time.Second, second: 30 * time.Second, third: 60 * time.Second},
		{name: "self-fencing in between", second: 30 * time.Second},
		{name: "record of an earlier version", first: 30 * time.Second, second: 30 * time.Second, third: 60 * time.Second, earlier: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, d := t.TempDir(), &fakeWatchdog{}
			run := func(contact time.Duration) *fed {
				f := newFed(dir, d, contact)
				for range 3 {
					f.look(true)
				}
				f.settings.Flush(checkBound) // a look on a busy machine may give up before
				if f.look(true); !d.armed || !slices.Equal(f.stated, []bool{true}) {
					t.Fatalf("armed %t, stated %v", d.armed, f.stated)
				}
				f.keptContact(t)
				d.held = false // the daemon is killed
				return f
			}
			first := run(tt.first)
			if tt.earlier {
				if err := os.WriteFile(first.path(armedFile), []byte(thisBoot), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			stated := run(tt.second).feeder.ContactWithin()
			if got := newFed(dir, d, tt.third).feeder.ContactWithin(); got != stated {
				t.Errorf("the third daemon feeds a node without contact for %s: want the stated %s", got, stated)
			}
		})
	}
}

// TestDeviceIsFedButNotStatedWhileSettingsAreNotRecorded: the disk refuses the settings of a device that was left armed, or hangs. The
// daemon feeds the device all the same. It states the device once they are recorded.
func TestDeviceIsFedButNotStatedWhileSettingsAreNotRecorded(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"refuses": func(path string) error { return os.Mkdir(path, 0o700) },
		"hangs":   func(path string) error { return unix.Mkfifo(path, 0o600) }, // opening it for writing blocks
	} {
		t.Run(name, func(t *testing.T) {
			dir, d := t.TempDir(), &fakeWatchdog{armed: true}
			leaveArmed(t, dir, thisBoot)
			f := newFed(dir, d, 20*time.Second)
			blocked := f.path(armedFile) + ".new"
			if err := spoil(blocked); err != nil {
				t.Fatal(err)
			}
			const looks = 3
			for range looks {
				f.look(true)
			}
			if d.fed != looks || len(f.stated) > 0 {
				t.Errorf("fed %d times in %d looks, stated %v", d.fed, looks, f.stated)
			}
			if name == "hangs" { // its end unblocks the writer; a file that cannot be synced is refused
				end, err := os.OpenFile(blocked, os.O_RDONLY|unix.O_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = end.Close() }()
				f.settings.Flush(checkBound)
			}
			if err := os.Remove(blocked); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			f.look(true)
			if !f.settings.Flush(checkBound) {
				t.Fatal("the settings are not recorded")
			}
			if f.look(true); !slices.Equal(f.stated, []bool{true}) {
				t.Errorf("the disk works again: stated %v", f.stated)
			}
			if l := f.left(); l == nil || l.ContactWithin != 20*time.Second || l.Timeout != 10*time.Second {
				t.Errorf("recorded: %+v", l)
			}
		})
	}
}

// TestRecordWrittenAfterDisarmIsRemoved: a hanging disk writes the settings only after the device is disarmed. The next daemon must not
// take the device for an armed one.
func TestRecordWrittenAfterDisarmIsRemoved(t *testing.T) {
	d := &fakeWatchdog{}
	f := newFed(t.TempDir(), d, 0)
	for range 3 {
		f.look(true)
	}
	if !d.armed || f.left() == nil {
		t.Fatalf("armed %v, recorded %+v", d.armed, f.left())
	}
	f.end(true)
	f.writeArmed(f.armedRecord())
	if l := f.left(); d.armed || l != nil {
		t.Errorf("armed %v, recorded %+v: want a disarmed device without a record", d.armed, l)
	}
}

// leaveArmed writes the records of a daemon of this boot that left its device armed a moment ago.
func leaveArmed(t *testing.T, dir, boot string) {
	t.Helper()
	up, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		armedFile:   fmt.Sprintf("%s %d %d", boot, 10*time.Second, 30*time.Second),
		contactFile: fmt.Sprintf("%s %d", boot, up),
	} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNodeThatLosesPlaceDisarmsDevice: the daemon of such a node waits for another place, and feeds nothing. The supervisors have
// committed that, so no response waits for the node's reset. At another place the device must stay armed.
func TestNodeThatLosesPlaceDisarmsDevice(t *testing.T) {
	for name, tc := range map[string]struct {
		next  peers.State
		armed bool
	}{
		"place withdrawn": {peers.State{Number: 4}, false},
		"another place":   {peers.State{Number: 4, Placed: true, Coord: grid.Coord{X: 2}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			d := &daemon{cfg: RunConfig{Agent: config.Agent{Spare: true, Dims: "3x1x1", StateDir: t.TempDir()}},
				log: slog.New(slog.DiscardHandler)}
			save := func(s peers.State) {
				t.Helper()
				if err := storage.PeerOrders().Save(d.cfg.Agent.StateDir, s); err != nil {
					t.Fatal(err)
				}
			}
			save(peers.State{Number: 3, Placed: true, Coord: grid.Coord{X: 1}})
			device := &fakeWatchdog{}
			leaveArmed(t, d.cfg.Agent.StateDir, thisBoot)
			f := newFed(d.cfg.Agent.StateDir, device, 30*time.Second)
			f.look(false)
			if !device.armed {
				t.Fatal("the device is not armed")
			}
			serving, ended := make(chan struct{}), make(chan error, 1)
			go func() {
				ended <- d.inPlace(t.Context(), func(ctx context.Context) error {
					close(serving)
					stopped := make(chan struct{})
					defer context.AfterFunc(ctx, func() { close(stopped) })()
					d.keepFeeding(ctx, f.hardware, stopped)
					return nil
				})
			}()
			<-serving
			save(tc.next)
			if err := <-ended; !errors.Is(err, errMoved) {
				t.Fatal(err)
			}
			if device.armed != tc.armed || device.held {
				t.Errorf("armed %t, held %t: want armed %t, and closed", device.armed, device.held, tc.armed)
			}
		})
	}
}

// TestDeviceIsFedWhileHalvesStop: the halves may take longer to stop than the device's time-out. Their words still advance, or have
// done so recently.
func TestDeviceIsFedWhileHalvesStop(t *testing.T) {
	dir := t.TempDir()
	leaveArmed(t, dir, thisBoot)
	synctest.Test(t, func(t *testing.T) {
		device := &fakeWatchdog{}
		f := newFed(dir, device, 30*time.Second)
		f.hardware.now = time.Now
		f.begin()
		ctx, stop := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			(&daemon{}).keepFeeding(ctx, f.hardware, stopped)
		}()
		time.Sleep(2 * hardwareLook)
		stop()
		time.Sleep(stopWait)
		close(stopped)
		<-ended
		if want := int((2*hardwareLook + stopWait) / hardwareLook); device.fed < want {
			t.Errorf("fed %d times until the halves have stopped: want %d or more", device.fed, want)
		}
		if !device.armed || device.held {
			t.Errorf("afterwards: armed %t, held %t: want armed, and closed", device.armed, device.held)
		}
	})
}

// TestDaemonDisarmsDeviceOfNodeWithoutPlace: an earlier daemon died before it could do that. Only an order that can be read proves that
// the supervisors withdrew the place.
func TestDaemonDisarmsDeviceOfNodeWithoutPlace(t *testing.T) {
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		coord, order string
		half         fault.Half
		disarmed     bool
	}{
		"withdrawn":     {order: "none", disarmed: true},
		"placed":        {order: "placed"},
		"no order yet":  {},
		"unreadable":    {order: "unreadable"},
		"configured":    {coord: "0,0,0", order: "none"},
		"DNP's daemon":  {order: "none", half: fault.HalfDNP},
		"host's daemon": {order: "none", half: fault.HalfHost, disarmed: true},
	} {
		dir := t.TempDir()
		device := filepath.Join(t.TempDir(), "watchdog")
		d := &daemon{log: slog.New(slog.DiscardHandler), cfg: RunConfig{Half: tc.half, Agent: config.Agent{Spare: tc.coord == "",
			Coord: tc.coord, Dims: "3x1x1", StateDir: dir, HardwareWatchdog: config.HardwareWatchdogConfig{Device: device}}}}
		err := os.WriteFile(device, nil, 0o600)
		switch tc.order {
		case "none":
			err = errors.Join(err, storage.PeerOrders().Save(dir, peers.State{Number: 4}))
		case "placed":
			err = errors.Join(err, storage.PeerOrders().Save(dir, peers.State{Number: 4, Placed: true}))
		case "unreadable":
			err = errors.Join(err, os.WriteFile(storage.PeerOrders().Path(dir), []byte("?"), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		leaveArmed(t, dir, hex.EncodeToString(boot[:]))
		d.disarmUnplaced()
		written, err := os.ReadFile(device)
		if err != nil {
			t.Fatal(err)
		}
		if disarmed := string(written) == "V"; disarmed != tc.disarmed || exists(t, filepath.Join(dir, armedFile)) == tc.disarmed {
			t.Errorf("%s: disarmed %t: want %t", name, disarmed, tc.disarmed)
		}
	}
}

// TestNextDaemonFeedsDeviceThatWasLeftArmed: it feeds the device at its first look if the node had contact in time, and not if the node has
// been alone for too long: a daemon that dies again and again does not keep a node up.
func TestNextDaemonFeedsDeviceThatWasLeftArmed(t *testing.T) {
	up, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		alone time.Duration
		want  int
	}{{5 * time.Second, 1}, {15 * time.Second, 1}, {31 * time.Second, 0}} {
		dir, d := t.TempDir(), &fakeWatchdog{armed: true}
		for file, text := range map[string]string{
			armedFile:   fmt.Sprintf("%s %d %d", thisBoot, 10*time.Second, 30*time.Second),
			contactFile: fmt.Sprintf("%s %d", thisBoot, up-tt.alone),
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		f := newFed(dir, d, 30*time.Second)
		if f.look(false); d.opened != tt.want || d.fed != tt.want {
			t.Errorf("alone for %s: opened %d times and fed %d times, want %d", tt.alone, d.opened, d.fed, tt.want)
		}
	}
}

// TestRecordsOfArmedDevice: a daemon reads the records of an earlier one of the same boot. Bad records make it stricter, never laxer.
func TestRecordsOfArmedDevice(t *testing.T) {
	const boot, other = "0123456789abcdef0123456789abcdef", "ffffffffffffffffffffffffffffffff"
	up, err := bootTime()
	if err != nil {
		t.Fatal(err)
	}
	recent := fmt.Sprintf("%s %d", boot, up)
	for name, tc := range map[string]struct {
		armed, contact string
		none           bool
		timeout        time.Duration
		contactWithin  time.Duration
		unknown        bool // when the last contact was
	}{
		"no record":       {armed: "", contact: recent, none: true},
		"of another boot": {armed: other + " 10000000000 20000000000", contact: recent, none: true},
		"armed in this boot": {armed: boot + " 10000000000 20000000000", contact: recent, timeout: 10 * time.Second,
			contactWithin: 20 * time.Second},
		"of an earlier version":   {armed: boot, contact: recent},
		"settings that are bad":   {armed: boot + " -5 x", contact: recent},
		"settings cut short":      {armed: boot + " 10000000000", contact: recent},
		"no contact recorded":     {armed: boot, contact: "", unknown: true},
		"contact of another boot": {armed: boot, contact: other + " 5", unknown: true},
		"contact in the future":   {armed: boot, contact: fmt.Sprintf("%s %d", boot, up+time.Hour), unknown: true},
		"contact that is no time": {armed: boot, contact: boot + " soon", unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &hardware{stateDir: t.TempDir(), boot: boot}
			for file, text := range map[string]string{armedFile: tc.armed, contactFile: tc.contact} {
				if text == "" {
					continue
				}
				if err := os.WriteFile(w.path(file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			l := w.left()
			if (l == nil) != tc.none {
				t.Fatalf("%+v: want none %t", l, tc.none)
			}
			if l == nil {
				return
			}
			if l.Timeout != tc.timeout || l.ContactWithin != tc.contactWithin || (l.Alone < 0) != tc.unknown {
				t.Errorf("%+v: want %+v", *l, tc)
			}
		})
	}
}

// TestLastContactIsRecorded: the record is of the last contact, and not of the last look, and only while the device is armed.
func TestLastContactIsRecorded(t *testing.T) {
	f := newFed(t.TempDir(), &fakeWatchdog{}, 30*time.Second)
	f.look(false)
	if exists(t, f.path(contactFile)) {
		t.Error("recorded while the device is not armed")
	}
	for range 3 {
		f.look(true)
	}
	read := func() string {
		f.keptContact(t)
		b, err := os.ReadFile(filepath.Join(f.stateDir, contactFile))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	last := read()
	for range 3 {
		f.look(false)
	}
	if read() != last {
		t.Error("a look without contact counts as contact")
	}
	if f.look(true); read() == last {
		t.Error("a new contact is not recorded")
	}
}

// TestDeviceIsFedWhileDiskHangs: the record of the last contact waits for the disk, and the device does not. When the disk works again, the
// newest contact is recorded.
func TestDeviceIsFedWhileDiskHangs(t *testing.T) {
	f := newFed(t.TempDir(), &fakeWatchdog{}, 30*time.Second)
	path := f.path(contactFile)
	if err := unix.Mkfifo(path, 0o600); err != nil { // opening it for writing blocks until somebody reads
		t.Fatal(err)
	}
	began := f.now
	clock := time.Now()
	f.hardware.now = func() time.Time { return began.Add(time.Since(clock)) }
	const looks = 5
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		for i := range looks {
			f.feed(f.hardware.now(), recovery.FenceLook{Readable: [2]bool{true, true}, Stores: [2]uint32{uint32(i), uint32(i)}, Links: true})
		}
	}()
	select {
	case <-fed:
	case <-time.After(checkBound):
		t.Error("the daemon waits for the disk and does not feed the device")
	}
	read, err := os.OpenFile(path, os.O_RDONLY, 0) // the disk works again
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = read.Close() }()
	<-fed
	if want := looks - 1; f.device.fed < want { // the first look proves nothing
		t.Errorf("fed %d times, want %d", f.device.fed, want)
	}
	if !f.contacts.Flush(checkBound) {
		t.Error("the contact is not written when the disk works again")
	}
	f.keepContact()
	if _, keep := f.feeder.Keep(); keep {
		t.Error("the newest contact is not recorded")
	}
}

// TestDeviceThatCannotBeUsedStaysDisarmed: a device with another time-out, or one that another program feeds, is neither stated nor
// recorded as armed.
func TestDeviceThatCannotBeUsedStaysDisarmed(t *testing.T) {
	for name, spoil := range map[string]func(*fed){
		"a shorter time-out": func(f *fed) { f.device.offers = 5 },
		"a longer time-out":  func(f *fed) { f.device.offers = 60 },
		"another feeder": func(f *fed) {
			f.openDevice = func(path string) (watchdogDevice, error) {
				return nil, &os.PathError{Op: "open", Path: path, Err: unix.EBUSY}
			}
		},
		"no watchdog at all": func(f *fed) { f.openDevice = openWatchdog }, // the null device
		"no way out":         func(f *fed) { f.device.noWayOut, f.cfg.AllowNoWayOut = true, false },
		"self-fencing, and a driver that disarms it when the feeder dies": func(f *fed) {
			f.device.disarmsOnClose = true
			*f = *newFed(t.TempDir(), f.device, 30*time.Second)
		},
	} {
		f := newFed(t.TempDir(), &fakeWatchdog{}, 0)
		spoil(f)
		for range 3 {
			f.look(true)
		}
		if f.device.armed || f.hardware.device != nil || len(f.stated) > 0 || exists(t, f.path(armedFile)) {
			t.Errorf("%s: armed %t, stated %v, record %t", name, f.device.armed, f.stated, exists(t, f.path(armedFile)))
		}
	}
}

// TestUnusableDeviceThatStaysArmedIsFed: such a device would reset the machine, and again at each boot. No response rests on it.
func TestUnusableDeviceThatStaysArmedIsFed(t *testing.T) {
	f := newFed(t.TempDir(), &fakeWatchdog{noWayOut: true, offers: 60}, 30*time.Second)
	f.look(true)
	f.look(true)
	if !f.device.armed {
		t.Fatal("the device was not opened")
	}
	const looks = 3 * openAgain
	before := f.device.fed
	for range looks {
		f.look(true)
	}
	if fed := f.device.fed - before; fed != looks || f.device.opened != 1 {
		t.Errorf("fed in %d of %d looks, opened %d times", fed, looks, f.device.opened)
	}
	if len(f.stated) > 0 || exists(t, f.path(armedFile)) {
		t.Errorf("stated %v, record %t", f.stated, exists(t, f.path(armedFile)))
	}
	f.device.offers = 0 // an attempt succeeds
	for range openAgain {
		f.look(true)
	}
	if f.device.opened != 1 || !slices.Equal(f.stated, []bool{true}) || f.hardware.device == nil {
		t.Errorf("the device offers the time-out: opened %d times, stated %v", f.device.opened, f.stated)
	}
	if f.end(true); f.device.held {
		t.Error("the device stays open after the end")
	}
}

// openAgain is the number of looks until the next attempt to open a device.
const openAgain = 31

// TestDeviceThatDisarmsOnCloseServesWithoutSelfFencing: no response rests on the device then.
func TestDeviceThatDisarmsOnCloseServesWithoutSelfFencing(t *testing.T) {
	d := &fakeWatchdog{disarmsOnClose: true}
	f := newFed(t.TempDir(), d, 0)
	for range 3 {
		f.look(true)
	}
	if !d.armed || !slices.Equal(f.stated, []bool{true}) {
		t.Errorf("armed %t, stated %v", d.armed, f.stated)
	}
}

// TestLookWithoutHalvesArmsNothing: while there is no register file, the daemon never arms the device.
func TestLookWithoutHalvesArmsNothing(t *testing.T) {
	f := newFed(t.TempDir(), &fakeWatchdog{}, 30*time.Second)
	for range 3 {
		f.now = f.now.Add(hardwareLook)
		f.hardware.look(t.Context())
	}
	if f.device.armed || len(f.stated) > 0 {
		t.Errorf("armed %t, stated %v", f.device.armed, f.stated)
	}
}

// TestStatementHasBootAndConfiguration: the host half states the device with the boot in which that holds.
func TestStatementHasBootAndConfiguration(t *testing.T) {
	boot, err := storage.BootID()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{cfg: RunConfig{Agent: config.Agent{StateDir: t.TempDir(), HardwareWatchdog: config.HardwareWatchdogConfig{Device: os.DevNull,
		Timeout: config.Duration(10 * time.Second), ContactWithin: config.Duration(30 * time.Second)}}}}
	host := &child{d: d, half: fault.HalfHost}
	d.halves = map[fault.Half]*child{fault.HalfHost: host}
	looked := make(chan struct{})
	go func() { // the goroutine of the host half looks meanwhile
		defer close(looked)
		host.tests()
	}()
	d.stateWatchdog(true, boot, recovery.NewFeeder(time.Now(), 10*time.Second, 30*time.Second, nil))
	<-looked
	if w := host.record.Watchdog; w == nil || !w.Armed || w.Timeout != 10*time.Second || w.ContactWithin != 30*time.Second || w.Boot == 0 {
		t.Errorf("%+v", w)
	}
}
