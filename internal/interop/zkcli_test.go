package interop_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/zsync/zsync/internal/ensemble"
	"github.com/zsync/zsync/internal/interop"
)

func TestZkCliTalksToTheServer(t *testing.T) {
	for name, open := range places() {
		t.Run(name, func(t *testing.T) {
			const n = "/zkcli"
			out := interop.ZkCli(t, open(t).servers,
				"deleteall "+n,
				"create "+n+" first",
				"get "+n,
				"create -s "+n+"/seq- a",
				"create -e "+n+"/eph b",
				"ls "+n,
				"set "+n+" second",
				"get -s "+n,
				"set -v 7 "+n+" third",
				"getAcl "+n,
				"getAllChildrenNumber "+n,
				"getEphemerals "+n,
				"ls -R "+n,
				"get -w "+n,
				"set "+n+" fourth",
				"get /no-such-node",
				"addWatch -m PERSISTENT_RECURSIVE "+n,
				"create "+n+"/watched c",
				"sync "+n,
				"whoami",
				"deleteall "+n,
				"stat "+n,
			)
			for _, want := range []string{
				"Created " + n,
				"first",
				"Created " + n + "/seq-0000000000",
				"[eph, seq-0000000000]",
				"second",
				"dataVersion = 1",
				"numChildren = 2",
				"version No is not valid : " + n,
				"'world,'anyone",
				": cdrwa",
				"2",
				n + "/seq-0000000000",
				"WatchedEvent state:SyncConnected type:NodeDataChanged path:" + n,
				"Node does not exist: /no-such-node",
				"WatchedEvent state:SyncConnected type:NodeCreated path:" + n + "/watched",
				"Sync is OK",
				"ip: 127.0.0.1",
				"WatchedEvent state:SyncConnected type:NodeDeleted path:" + n,
				"Node does not exist: " + n,
			} {
				if !slices.Contains(out, want) {
					t.Errorf("zkCli did not print %q", want)
				}
			}
			if t.Failed() {
				t.Logf("it printed:\n%s", strings.Join(out, "\n"))
			}
		})
	}
}

// conversation is what zkCli is told in both places of the test below. All of it leaves the rest
// of the tree alone, and it ends with no event on its way. It has no deleteall of
// more than it may delete: whether zkCli then says so is a race of its own.
const conversation = `
create /same a
create /same
create -s /same/s- b
create -e /same/e c
create -c /same/cont x
create -t 60000 /same/ttl x
create -s -t 60000 /same/ttls- x
create /same/e/x y
create /same/no/such y
create relative y
get -s /same
get /same/zzz
set /same a2
set -s -v 0 /same a3
set -v 1 /same a3
stat /same
stat /same/cont
stat /same/ttl
ls /same
ls -s /same
ls -R /same
ls /same/zzz
delete /same
delete /same/cont
getAllChildrenNumber /same
getEphemerals
getEphemerals /same
create /same/acl a
getAcl /same/acl
getAcl -s /same/acl
setAcl /same/acl auth::cdrwa
addauth digest u:p
setAcl /same/acl auth::cdrwa
getAcl /same/acl
get /same/acl
setAcl -v 0 /same/acl world:anyone:ra
setAcl -v 1 /same/acl world:anyone:ra
getAcl -s /same/acl
set /same/acl no
create /same/acl/no no
get /same/acl
setAcl /same/acl ip:127.0.0.1:cdrwa
set /same/acl yes
create /same/acl/yes yes
setAcl /same/acl ip:10.0.0.1:cdrw,ip:127.0.0.1:a
get /same/acl
set /same/acl no
create /same/acl/no no
delete /same/acl/yes
ls /same/acl
setAcl /same/acl world:anyone:cdrwa
ls -w /same
create /same/w1 x
stat -w /same
set /same yes2
get -w /same/w1
delete /same/w1
addWatch /same
set /same yes3
create /same/w2 x
removewatches /same
addWatch -m PERSISTENT_RECURSIVE /same
create /same/w3 x
create /same/w3/w4 x
removewatches /same
removewatches /same
sync /same
sync /same/zzz
whoami
delete /zookeeper
delete /
create /
delete -v 5 /same/w3/w4
delete -v 0 /same/w3/w4
deleteall /same
stat /same`

func TestZkCliCannotTellTheTestServerFromARealOne(t *testing.T) {
	// A follower may answer a setAcl before the leader has stopped judging by the old
	// ACL, so that a write which comes at once still passes. The leader is asked itself.
	e := ensemble.Faults(t)
	want := transcript(t, e.Addrs()[e.Leader()-1])
	got := transcript(t, inProcess(t).servers)
	if len(want) < 100 {
		t.Fatalf("zkCli printed only %q", want)
	}
	if !slices.Equal(got, want) {
		t.Errorf("zkCli of a real server printed, lines sorted:\n%s\n\nof the test server:\n%s",
			strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
}

// transcript returns what zkCli prints in the conversation, without what must differ. The lines
// are sorted, because events are printed as they come.
func transcript(t *testing.T, servers string) []string {
	t.Helper()
	interop.ZkCli(t, servers, "deleteall /same")
	var lines []string
	for _, line := range interop.ZkCli(t, servers, strings.Split(conversation, "\n")...) {
		if line != "" && !incidental.MatchString(line) {
			lines = append(lines, varying.ReplaceAllString(line, "$1…"))
		}
	}
	slices.Sort(lines)
	return lines
}

// incidental matches lines about the connection rather than the tree.
var incidental = regexp.MustCompile(`^Connecting to |^WATCHER::|type:None path:null`)

// varying matches zxids, times and the ids of sessions.
var varying = regexp.MustCompile(`((?:Zxid|time) = |ephemeralOwner = 0x[1-9a-f]).*`)
