package durable

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMountOfPath(t *testing.T) {
	const table = `22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:21 / /proc rw - proc proc rw
30 22 254:2 / /var/lib rw - xfs /dev/vdb rw
31 30 0:30 / /var/lib/with\040space rw - tmpfs tmp\134fs rw
32 22 254:3 / /var/lib rw - xfs /dev/vdc rw
broken
33 22 254:3 / /var/lib/other rw - xfs
`
	for path, want := range map[string][2]string{
		"/":                           {"/", "/dev/vda1"},
		"/var/library":                {"/", "/dev/vda1"},
		"/var/lib":                    {"/var/lib", "/dev/vdc"},
		"/var/lib/lofamo/supervisor":  {"/var/lib", "/dev/vdc"},
		"/var/lib/with space/data":    {"/var/lib/with space", `tmp\fs`},
		"/var/lib/other/lofamo/state": {"/var/lib", "/dev/vdc"},
	} {
		if point, device := mountOf([]byte(table), path); point != want[0] || device != want[1] {
			t.Errorf("%s is on %s (%s): want %s", path, point, device, want)
		}
	}
}

func TestRoomOfDirectoryThatDoesNotExist(t *testing.T) {
	dir := t.TempDir()
	r, err := RoomOf(filepath.Join(dir, "not", "yet"))
	var st unix.Statfs_t
	if err != nil || unix.Statfs(dir, &st) != nil || r.Free == 0 || r.Free > st.Blocks*uint64(st.Bsize) || r.MountPoint == "" ||
		r.Device == "" {
		t.Errorf("%+v, %v", r, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := RoomOf(filepath.Join(dir, "file", "below")); err == nil {
		t.Error("a directory below a file has room")
	}
}

func TestLowDiskHasHysteresis(t *testing.T) {
	var l Low
	for i, tc := range []struct {
		free        uint64
		changed, on bool
	}{{1000, false, false}, {999, true, true}, {1000, false, true}, {1124, false, true}, {1125, true, false}, {1000, false, false}} {
		if changed := l.Update(tc.free, 1000); changed != tc.changed || l.On != tc.on {
			t.Errorf("step %d, %d free: changed %t, low %t", i, tc.free, changed, l.On)
		}
	}
}
