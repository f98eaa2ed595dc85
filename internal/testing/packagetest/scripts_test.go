package packagetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lofamo/lofamo/internal/testing/requirements"
)

// privately gives shell commands their own copies of /etc, /usr and /var/lib and an empty /run. It creates the users of the
// packages, and defines `script PACKAGE NAME ARG…`, which runs a package's script, and `purge PACKAGE`.
const privately = `set -e
repository=$1
dir=$2
mount --make-rprivate /
mount -t tmpfs tmpfs "$dir"
for d in etc usr var/lib; do
  mkdir -p "$dir/$d/upper" "$dir/$d/work"
  mount -t overlay overlay -o "lowerdir=/$d,upperdir=$dir/$d/upper,workdir=$dir/$d/work" "/$d"
done
mount -t tmpfs tmpfs /run
rm -rf /etc/lofamo /var/lib/lofamo /usr/bin/lofamo-*
for p in agent supervisor; do cp "$repository/deploy/systemd/lofamo.sysusers" "/usr/lib/sysusers.d/lofamo-$p.conf"; done
cp "$repository/deploy/systemd/lofamo-executor.sysusers" /usr/lib/sysusers.d/lofamo-executor.conf
script() {
  p=$1 s=$2
  shift 2
  cat "$repository/deploy/packages/scripts/common" "$repository/deploy/packages/scripts/$p/$s" >"$dir/script"
  sh "$dir/script" "$@" 2>&1
}
purge() { for s in 'preremove remove' 'postremove remove' 'postremove purge'; do script "$1" $s; done; }
for p in lofamo-agent lofamo-supervisor lofamo-executor; do script "$p" postinstall configure ''; done
mkdir -p /etc/lofamo/pki
`

// private runs commands after those of privately, and returns their output.
func private(t *testing.T, commands string) string {
	t.Helper()
	need(t, "unshare", "useradd", "setpriv")
	if os.Geteuid() != 0 {
		requirements.Missing(t, "not root")
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(privately+commands), 0o600); err != nil {
		t.Fatal(err)
	}
	return output(t, "unshare", "--mount", "sh", script, abs(t, root), t.TempDir())
}

// TestPurgeKeepsStoresOfPods: where pods of the chart have their state in a package's directory, a purge of the package keeps it,
// and says so. Without pods it removes the directory.
func TestPurgeKeepsStoresOfPods(t *testing.T) {
	for name, tc := range map[string]struct {
		pack  string
		make  string // makes the directory, which is the working directory
		keeps string // file in it; empty: the directory is removed
	}{
		"supervisor's volume that the kubelet made": {"supervisor", "mkdir -p store/member; echo data >store/member/db; chown -R 65532:65532 .",
			"store/member/db"},
		"supervisor's volume that a person made": {"supervisor", "mkdir store; echo data >store/db; chown -R 65532:65532 *; chgrp 65532 .",
			"store/db"},
		"supervisor's volume that was the package's": {"supervisor",
			"mkdir keys store; echo s1 >keys/supervisor.yaml; echo data >store/db; chown -R 65532:65532 *; chown lofamo .", "store/db"},
		"supervisor's volume elsewhere": {"supervisor",
			`rmdir ../supervisor; mkdir "$dir/volume"; chown 65532 "$dir/volume"; ln -s "$dir/volume" ../supervisor`, "."},
		"executor's volume that a person made": {"executor", "mkdir ledger; echo tokens >ledger/ledger; chown -R 65532 ledger", "ledger/ledger"},
		"executor's volume that was the package's": {"executor",
			"mkdir ledger; echo tokens >ledger/ledger; chown -R 65532 ledger; chown lofamo-executor .", "ledger/ledger"},
		"package's supervisor": {"supervisor", "mkdir store; echo data >store/db; chown -R lofamo .", ""},
		"package's executor":   {"executor", "echo tokens >ledger; chown -R lofamo-executor .", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "/var/lib/lofamo/" + tc.pack
			out := private(t, "mkdir -p "+dir+"\ncd "+dir+"\n"+tc.make+"\ncd /\npurge lofamo-"+tc.pack+"\n"+
				"echo PURGED\ntest ! -e "+dir+"/"+tc.keeps+" || echo kept")
			said, left, _ := strings.Cut(out, "PURGED\n")
			kept := left == "kept\n"
			if keeps := tc.keeps != ""; kept != keeps || strings.Contains(said, dir+" stays") != keeps {
				t.Errorf("kept %v, want %v; the purge says:\n%s", kept, keeps, said)
			}
		})
	}
}

// running replaces systemctl and the programs by scripts. Every unit has the user lofamo and one more group. Its main process has chosen an
// environment that runs code in programs that inherit it. A program accepts files with the word good, if it runs as the unit's user with
// an empty environment and without a terminal, and prints an escape sequence.
const running = `mkdir -p /run/systemd/system
cat >/usr/bin/systemctl <<'END'
#!/bin/sh
case "$1" in
is-active) case "$*" in *@*) exit 3 ;; *--quiet*) ;; *) echo active ;; esac ;;
show)
  case "$*" in
  *MainPID*) cat /run/pid ;;
  *SupplementaryGroups*) echo 77 ;;
  *User* | *Group*) echo lofamo ;;
  esac ;;
kill) echo "systemctl $*"; echo 1 >/run/pid ;;
*) echo "systemctl $*" ;;
esac
END
for p in agent supervisor executor; do
  cat >"/usr/bin/lofamo-$p" <<'END'
#!/bin/sh
is="$(id -un) $(id -G) $(env | grep -v -e ^PWD= -e ^_= -e ^PATH= -e ^SHLVL=) $(ps -o tty= -p $$)"
[ "$is" = "lofamo $(id -g lofamo) 77  ?" ] || { echo "runs as $is" >&2; exit 2; }
case "$*" in
"config check --start /etc/lofamo/"*)
  grep -q good "$4" || { printf '\033%s: colour: unknown key\n' "$4" >&2; exit 2; }
  echo "$4: good" ;;
*) echo "${0##*/} $*" ;;
esac
END
  chmod +x "/usr/bin/lofamo-$p"
done
chmod +x /usr/bin/systemctl
setpriv --reuid=lofamo --regid=lofamo --groups=77 \
  env -i LD_PRELOAD=/var/lib/lofamo/theirs.so IFS=/ PS4='$(touch /run/theirs)' sleep 600 >/dev/null 2>&1 &
pid=$!
trap 'kill "$pid"' EXIT
until [ "$(cat "/proc/$pid/comm")" = sleep ]; do sleep 0.1; done
echo "$pid" >/run/pid
`

// TestUpgradeLeavesProcessThatCouldNotStartAgain: an upgrade ends no process whose configuration the new version refuses. It says that
// the process stays, and how to continue. It replaces every other running process. Root's scripts take nothing from that process.
func TestUpgradeLeavesProcessThatCouldNotStartAgain(t *testing.T) {
	for pack, replaces := range map[string]string{
		"agent":      "systemctl kill --kill-who=main --signal=KILL lofamo-agent\nlofamo-agent restart --config /etc/lofamo/agent.yaml\n",
		"supervisor": "systemctl try-restart --no-block lofamo-supervisor\n",
		"executor":   "systemctl try-restart --no-block lofamo-executor\n",
	} {
		for name, tc := range map[string]struct {
			change string // what happens to the file or the process
			leaves bool
		}{
			"good file":     {"echo good >FILE", false},
			"refused file":  {"echo bad >FILE", true},
			"no file":       {":", false},
			"no process":    {"echo bad >FILE; echo 0 >/run/pid", false},
			"ended process": {"echo bad >FILE; true & wait $!; echo $! >/run/pid", false},
		} {
			t.Run(pack+" with "+name, func(t *testing.T) {
				file := "/etc/lofamo/" + pack + ".yaml"
				out := private(t, running+strings.ReplaceAll(tc.change, "FILE", file)+
					"\necho UPGRADE\nscript lofamo-"+pack+" postinstall configure 1.2.2")
				_, said, _ := strings.Cut(out, "UPGRADE\n")
				want := "systemctl daemon-reload\n" + replaces
				if tc.leaves {
					if !strings.Contains(said, "\n"+file+": colour: unknown key\n") || !strings.Contains(said, "keeps running") ||
						strings.Contains(said, replaces) {
						t.Errorf("the upgrade does and says:\n%s", said)
					}
				} else if said != want {
					t.Errorf("the upgrade does and says:\n%s\nwant:\n%s", said, want)
				}
			})
		}
	}
}

// TestUnitCopiesKernelLogsOfRootAlone: the command that the agent's unit runs as root copies logs of root. It follows no link, enters no
// folder at any depth that another user can write, and believes no name that such a folder contains.
func TestUnitCopiesKernelLogsOfRootAlone(t *testing.T) {
	for unit, specifier := range map[string]string{"lofamo-agent": "%i", "lofamo-agent@": "host"} {
		b, err := os.ReadFile(filepath.Join(root, "deploy/systemd", unit+".service"))
		_, command, found := strings.Cut(string(b), "\nExecStartPre=-+/bin/sh -c '")
		command, _, ended := strings.Cut(command, "'\n")
		if err != nil || !found || !ended {
			t.Fatalf("%s, %v: want a command of root", unit, err)
		}
		command = strings.NewReplacer("\\\n", " ", "\\\\", "\\", "$$", "$", "%%", "%", "%i", specifier).Replace(command)
		out := private(t, `secret=/etc/secret
echo secret >"$secret"
mkdir -p /var/lib/systemd/pstore/1/2 /var/lib/systemd/pstore/theirs/1 /var/lib/systemd/pstore/open/1
cd /var/lib/systemd/pstore
echo good >1/2/dmesg.good
ln -s "$secret" 1/dmesg.link
echo theirs >1/dmesg.theirs; chown lofamo 1/dmesg.theirs
echo writable >1/dmesg.writable; chmod 666 1/dmesg.writable
echo moved >theirs/1/dmesg; chown lofamo theirs
echo moved >open/1/dmesg; chmod 777 open
mkdir -p "theirs/x
9999999999 $secret"; touch "theirs/x
9999999999 $secret/dmesg"
(`+command+`)
cd /run/lofamo-kernel
echo COPIED
cat dmesg-*
ls`)
		if _, copied, _ := strings.Cut(out, "COPIED\n"); copied != "good\ncomplete\ndmesg-1\n" {
			t.Errorf("%s: the copies are:\n%s", unit, out)
		}
	}
}

// TestUpgradeSaysThatRestartIsIncomplete: after `lofamo-agent restart` has failed, the package does not say that the halves run the
// previous version. A half may have restarted, with stored authorities that are old.
func TestUpgradeSaysThatRestartIsIncomplete(t *testing.T) {
	out := private(t, running+`cat >/usr/bin/lofamo-agent <<'END'
#!/bin/sh
case "$1" in config) exit 0 ;; esac
echo "lofamo-agent: the dnp half restarted, but with the old stored settings" >&2
exit 1
END
echo good >/etc/lofamo/agent.yaml
script lofamo-agent postinstall configure 1.2.2`)
	const want = "lofamo-agent: the restart of the halves is not complete, see above. " +
		"After the repair repeat: lofamo-agent restart --config /etc/lofamo/agent.yaml\n"
	if !strings.Contains(out, "old stored settings\n"+want) {
		t.Errorf("the upgrade says:\n%swant:\n%s", out, want)
	}
}

// TestPurgeKeepsUserThatOwnsFiles: a purge removes the package's user only if the user owns no file of ours, because the next
// package's user could get its number and read that file. It names the file, and a purge without such a file removes the user.
func TestPurgeKeepsUserThatOwnsFiles(t *testing.T) {
	for name, tc := range map[string]struct {
		pack  string
		make  string // makes files
		keeps string // file that keeps the user; empty: the purge removes the user
	}{
		"key that pods use": {"agent", "mkdir -p /run/lofamo/agent; install -m 0600 -o lofamo /dev/null /etc/lofamo/pki/host.key",
			"/etc/lofamo/pki/host.key"},
		"directory with the state of pods": {"agent", "mkdir -p /run/lofamo/agent; chown lofamo /run/lofamo", "/run/lofamo"},
		"state of the other package": {"agent", "install -d -o lofamo /var/lib/lofamo/supervisor; script lofamo-supervisor preremove remove",
			"/var/lib/lofamo/supervisor"},
		"receiver's secret": {"supervisor", "install -m 0600 -o lofamo /dev/null /etc/lofamo/remedy.secret", "/etc/lofamo/remedy.secret"},
		"password of a BMC": {"executor", "install -m 0600 -o lofamo-executor /dev/null /etc/lofamo/bmc", "/etc/lofamo/bmc"},
		"store of pods":     {"supervisor", "install -d -o 65532 /var/lib/lofamo/supervisor", ""},
		"files of the package": {"agent", `install -d -o lofamo /var/lib/lofamo/agent
for f in agent.yaml gossip.key pki/host.key pki/dnp.key token; do install -m 0600 -o lofamo /dev/null "/etc/lofamo/$f"; done`, ""},
		"secret while the other package is installed": {"agent", "touch /usr/bin/lofamo-supervisor; chown lofamo /etc/lofamo/pki",
			"/etc/lofamo/pki"},
	} {
		t.Run(name, func(t *testing.T) {
			user := "lofamo"
			if tc.pack == "executor" {
				user = "lofamo-executor"
			}
			out := private(t, tc.make+"\npurge lofamo-"+tc.pack+"\necho PURGED\ngetent passwd "+user+" | cut -d: -f1\n"+
				"echo LATER\nrm -rf /run/lofamo /etc/lofamo /var/lib/lofamo/supervisor /usr/bin/lofamo-supervisor\n"+
				"script lofamo-"+tc.pack+" postremove purge\ngetent passwd "+user+" || true")
			said, rest, _ := strings.Cut(out, "PURGED\n")
			kept, later, _ := strings.Cut(rest, "LATER\n")
			if kept == user+"\n" != (tc.keeps != "") {
				t.Errorf("kept user %q, want %v", kept, tc.keeps != "")
			}
			// A package that is still installed keeps the user in any case.
			says := strings.Contains(said, "user "+user+" stays. It owns "+tc.keeps+"\n")
			if says != (tc.keeps != "" && !strings.Contains(tc.make, "/usr/bin")) {
				t.Errorf("the purge says:\n%s", said)
			}
			if later != "" {
				t.Errorf("after another purge without the file: %s", later)
			}
		})
	}
}

// TestPurgeRemovesToken: a purge removes the token by which the node enrolled. Pods that use /etc/lofamo keep it.
func TestPurgeRemovesToken(t *testing.T) {
	for _, tc := range []struct{ before, want string }{
		{"", "ls: cannot access '/etc/lofamo': No such file or directory\n"}, {"mkdir -p /run/lofamo/agent", "agent.yaml\ntoken\n"},
	} {
		out := private(t, "touch /etc/lofamo/agent.yaml /etc/lofamo/token\n"+tc.before+"\npurge lofamo-agent\n"+
			"echo PURGED\nLC_ALL=C ls /etc/lofamo 2>&1 || true")
		if _, left, _ := strings.Cut(out, "PURGED\n"); left != tc.want {
			t.Errorf("after %q and a purge: %s, want %s", tc.before, left, tc.want)
		}
	}
}
