package embedded_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"

	"github.com/lofamo/lofamo/internal/supervisor/embedded"
	"github.com/lofamo/lofamo/internal/supervisor/store"
)

const (
	damagedKey = store.Prefix + "meta" // damageValue changes its value
	page       = 4096
)

// TestDamagedFilesAreNamed: every kind of damage ends the start with the file, the cause and the remedy.
func TestDamagedFilesAreNamed(t *testing.T) {
	keys := keys(t)
	cfg := config(t, keys)
	m, err := embedded.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // several pages
		if _, err := m.Client().Put(t.Context(), fmt.Sprintf("%sx/%d", store.Prefix, i), strings.Repeat("x", 300)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Client().Put(t.Context(), damagedKey, "all is well"); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	const db, wal = "etcd/member/snap/db", "etcd/member/wal"
	for _, tc := range []struct {
		name   string
		damage func(t *testing.T, dir string)
		file   string // "": none is damaged
		cause  string
	}{
		{"none", func(*testing.T, string) {}, "", ""},
		{"database cut off", func(t *testing.T, dir string) { cut(t, dir, db, 3*page) }, db, "cut off"},
		{"database empty", func(t *testing.T, dir string) { cut(t, dir, db, 0) }, db, "empty"},
		{"database full of zeros", func(t *testing.T, dir string) { overwrite(t, dir, db, 0, -1) }, db, "cannot be opened"},
		{"database with a page of zeros", func(t *testing.T, dir string) { overwrite(t, dir, db, 2*page, 16*page) }, db, "damaged page"},
		{"database missing", func(t *testing.T, dir string) { remove(t, dir, db) }, db, "missing"},
		{"value changed", damageValue, db, damagedKey},
		{"log missing", func(t *testing.T, dir string) { remove(t, dir, wal) }, wal, "missing"},
		{"log cut off", func(t *testing.T, dir string) { cut(t, dir, segment(t, dir), 8*page) }, wal, "ends at entry"},
		{"log with changed bytes", func(t *testing.T, dir string) { overwrite(t, dir, segment(t, dir), 8*page, 9*page) }, wal, "damaged"},
		{"data of another member", renameMember, "etcd/member", "these are data of member"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := cfg
			copied := t.TempDir()
			if err := os.CopyFS(copied, os.DirFS(cfg.DataDir)); err != nil {
				t.Fatal(err)
			}
			cfg.DataDir = copied
			tc.damage(t, copied)
			if tc.file == "" {
				start(t, cfg)
				return
			}
			m, err := embedded.Start(cfg)
			if err == nil {
				t.Fatal("the member starts", m.Stop(context.Background()))
			}
			var damage *embedded.DamageError
			if !errors.As(err, &damage) || damage.File != filepath.Join(copied, tc.file) || !strings.Contains(err.Error(), tc.cause) ||
				!strings.Contains(err.Error(), "lofamoctl supervisor replace") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v: want one line about %s, with %q and the remedy", err, tc.file, tc.cause)
			}
		})
	}
}

func TestUnreadableFilesAreNamed(t *testing.T) {
	if os.Geteuid() == 0 { // who may read everything
		runAsNobody(t)
		return
	}
	cfg := config(t, keys(t))
	m, err := embedded.Start(cfg)
	if err == nil {
		err = m.Stop(context.Background())
	}
	db := filepath.Join(cfg.DataDir, "etcd/member/snap/db")
	if err := errors.Join(err, os.Chmod(db, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := embedded.Start(cfg); err == nil || !strings.Contains(err.Error(), db) || !strings.Contains(err.Error(),
		"give it to the user") {
		t.Errorf("%v: want the file and the remedy", err)
	}
}

// runAsNobody runs the test in a process of another user.
func runAsNobody(t *testing.T) {
	t.Helper()
	const nobody = 65534
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run", "^"+t.Name()+"$")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Dir, cmd.Env = "/", append(os.Environ(), "TMPDIR=/tmp", "GOTMPDIR=/tmp")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("as another user: %v\n%s", err, out)
	}
}

// segment returns the first file of the log, below dir.
func segment(t *testing.T, dir string) string {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "etcd/member/wal/*.wal"))
	if err != nil || len(list) == 0 {
		t.Fatal(list, err)
	}
	rel, err := filepath.Rel(dir, list[0])
	if err != nil {
		t.Fatal(err)
	}
	return rel
}

func cut(t *testing.T, dir, file string, size int64) {
	t.Helper()
	if err := os.Truncate(filepath.Join(dir, file), size); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, dir, file string) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
}

// overwrite fills a part of a file with zeros; to is -1 for its end.
func overwrite(t *testing.T, dir, file string, from, to int) {
	t.Helper()
	path := filepath.Join(dir, file)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if to < 0 {
		to = len(b)
	}
	clear(b[from:to])
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// inDB changes a member's database, and keeps its structure.
func inDB(t *testing.T, dir string, change func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "etcd/member/snap/db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(change), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// damageValue changes one byte of the newest value of damagedKey.
func damageValue(t *testing.T, dir string) {
	t.Helper()
	inDB(t, dir, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("key"))
		c := b.Cursor()
		for k, v := c.Last(); k != nil; k, v = c.Prev() {
			kv := new(mvccpb.KeyValue)
			if err := proto.Unmarshal(v, kv); err != nil {
				return err
			}
			if string(kv.GetKey()) != damagedKey {
				continue
			}
			kv.Value[0] ^= 1
			changed, err := proto.Marshal(kv)
			if err != nil {
				return err
			}
			return b.Put(k, changed)
		}
		return errors.New("no " + damagedKey)
	})
}

// renameMember makes the data those of a member that knows another one of its configured name.
func renameMember(t *testing.T, dir string) {
	t.Helper()
	inDB(t, dir, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("members"))
		k, v := b.Cursor().First()
		id := binary.BigEndian.AppendUint32(nil, 1)
		other := []byte(strings.Replace(string(v), "s1", "s2", 1))
		return errors.Join(b.Put(fmt.Appendf(nil, "%x", id), v), b.Put(k, other))
	})
}
