package repo

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Three servers is what compose.yaml starts, and where they answer is what people
// are told to connect to.
func TestTheServersOfTheComposeFileAreThoseThatPeopleAreToldOf(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	compose := read("compose.yaml")
	var addresses, ensemble []string
	services := regexp.MustCompile(`(?m)^  (zk\d):\n    <<: \*server\n    hostname: (zk\d)\n    ports: \["(127\.0\.0\.1:\d+):(\d+)"\]\n    environment: \{<<: \*environment, ZOO_MY_ID: (\d)\}$`)
	for _, m := range services.FindAllStringSubmatch(compose, -1) {
		name, host, outside, inside, id := m[1], m[2], m[3], m[4], m[5]
		if name != host {
			t.Errorf("the service %s calls itself %s", name, host)
		}
		addresses = append(addresses, outside)
		ensemble = append(ensemble, fmt.Sprintf("server.%s=%s:2888:3888;%s", id, host, inside))
	}
	if len(addresses) != 3 {
		t.Fatalf("%d servers", len(addresses))
	}
	if want := "\n  ZOO_SERVERS: " + strings.Join(ensemble, " ") + "\n"; !strings.Contains(compose, want) {
		t.Errorf("the servers do not know each other as %q", want)
	}
	told := "export ZSYNC_SERVERS=" + strings.Join(addresses, ",") + "\n"
	for _, name := range []string{"compose.yaml", "README.md"} {
		if text := read(name); !strings.Contains(text, told) || !strings.Contains(text, "docker compose up -d --wait") {
			t.Errorf("%s does not say %q", name, told)
		}
	}
}
