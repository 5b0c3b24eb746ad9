package zsync_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/zsync/zsync"
	"github.com/zsync/zsync/zktest"
)

// Producers send; a consumer ranges over a channel.
func ExampleQueue() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	jobs := zsync.NewQueue[string](s, "/jobs")
	if err := jobs.Send(ctx, "wash", "dry", "fold"); err != nil {
		log.Fatal(err)
	}
	for job := range jobs.Recv(ctx) {
		fmt.Println(job)
		if job == "fold" {
			cancel() // the channel is closed
		}
	}
	// Output:
	// wash
	// dry
	// fold
}

// A delivery stays in the queue until it is acknowledged.
func ExampleQueue_Deliveries() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	mail := zsync.NewQueue[string](s, "/mail", zsync.WithMaxAttempts(3))
	if err := mail.Send(ctx, "to Ann", "to Bob"); err != nil {
		log.Fatal(err)
	}
	deliver := func(to string, attempt int) error {
		if to == "to Ann" && attempt == 1 {
			return errors.New("nobody at home")
		}
		return nil
	}
	sent := 0
	for d, err := range mail.All(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		if err := deliver(d.Value, d.Attempt); err != nil {
			fmt.Println(d.Value, "failed:", err)
			d.Nack() // back to its place
			continue
		}
		switch err := d.Ack(ctx); {
		case errors.Is(err, zsync.ErrLost):
			continue // somebody else will get it
		case err != nil:
			log.Fatal(err)
		}
		if sent++; sent == 2 {
			break
		}
	}
	n, err := mail.Len(ctx)
	fmt.Println("left:", n, err)
	// Output:
	// to Ann failed: nobody at home
	// left: 0 <nil>
}

// A channel to send to, for pipelines.
func ExampleQueue_In() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	q := zsync.NewQueue[int](s, "/squares")
	in, done := q.In(ctx)
	for i := range 5 {
		in <- i * i
	}
	close(in)
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	for {
		v, ok, err := q.TryRecv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		if !ok {
			break
		}
		fmt.Print(v, " ")
	}
	// Output: 0 1 4 9 16
}

// A point has a form of its own on the wire, as a protobuf message has.
type point struct{ x, y uint32 }

func (p *point) Marshal() []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, p.x), p.y)
}

func (p *point) Unmarshal(b []byte) error {
	if len(b) != 8 {
		return fmt.Errorf("%d bytes are no point", len(b))
	}
	p.x, p.y = binary.BigEndian.Uint32(b), binary.BigEndian.Uint32(b[4:])
	return nil
}

// A messageCodec is for values that know their own form. With protobuf it would
// call proto.Marshal and proto.Unmarshal.
type messageCodec struct{}

func (messageCodec) Marshal(v any) ([]byte, error) {
	m, ok := v.(interface{ Marshal() []byte })
	if !ok {
		return nil, fmt.Errorf("%T is no message", v)
	}
	return m.Marshal(), nil
}

func (messageCodec) Unmarshal(data []byte, v any) error {
	p, ok := v.(**point) // the queue's elements are *point
	if !ok {
		return fmt.Errorf("%T is no message", v)
	}
	*p = new(point)
	return (*p).Unmarshal(data)
}

func ExampleWithCodec() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	q := zsync.NewQueue[*point](s, "/points", zsync.WithCodec(messageCodec{}))
	if err := q.Send(ctx, &point{3, 4}); err != nil {
		log.Fatal(err)
	}
	p, ok, err := q.TryRecv(ctx)
	fmt.Println(*p, ok, err)
	// Output: {3 4} true <nil>
}

// An element that cannot be decoded is set aside, and can be looked at.
func ExampleQueue_Dead() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	raw := zsync.NewQueue[string](s, "/numbers", zsync.WithCodec(zsync.Raw))
	if err := raw.Send(ctx, "one", "2"); err != nil {
		log.Fatal(err)
	}
	numbers := zsync.NewQueue[int](s, "/numbers")
	v, ok, err := numbers.TryRecv(ctx)
	fmt.Println(v, ok, err)
	for d, err := range numbers.Dead(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("dead: %s\n", d.Data)
	}
	if _, err := numbers.PurgeDead(ctx, nil); err != nil {
		log.Fatal(err)
	}
	// Output:
	// 2 true <nil>
	// dead: one
}

// Work calls a function for each element. A function that fails gets its element again.
func ExampleQueue_Work() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	jobs := zsync.NewQueue[string](s, "/jobs", zsync.WithMaxAttempts(5))
	if err := jobs.Send(ctx, "resize image 7"); err != nil {
		log.Fatal(err)
	}
	attempts := 0
	err = jobs.Work(ctx, 1, func(ctx context.Context, job string) error {
		if attempts++; attempts == 1 {
			return errors.New("out of memory") // again, after a pause
		}
		fmt.Println(job, "in attempt", attempts)
		cancel() // Work returns when its functions have returned
		return nil
	})
	fmt.Println(err)
	// Output:
	// resize image 7 in attempt 2
	// zsync: work /jobs: context canceled
}

// An error that no other attempt would cure makes an element a dead letter at once.
func ExamplePermanent() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	jobs := zsync.NewQueue[string](s, "/jobs")
	if err := jobs.Send(ctx, "resize image 7"); err != nil {
		log.Fatal(err)
	}
	jobs.Work(ctx, 1, func(ctx context.Context, job string) error {
		cancel() // Work returns when its functions have returned
		return zsync.Permanent(errors.New("there is no image 7"))
	})
	for d, err := range jobs.Dead(context.Background()) {
		fmt.Println(d.Reason, "in attempt", d.Attempts, err)
	}
	// Output: there is no image 7 in attempt 1 <nil>
}

// A program that does not know whether its Send was stored sends again with the same ID.
func ExampleQueue_SendID() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	orders := zsync.NewQueue[string](s, "/orders")
	for range 2 {
		sent, err := orders.SendID(ctx, "order-4711", "two cups")
		fmt.Println(sent, err)
	}
	n, err := orders.Len(ctx)
	fmt.Println(n, err)
	// Output:
	// true <nil>
	// false <nil>
	// 1 <nil>
}

// The orders of a customer are worked on in order, one at a time.
func ExampleWithKey() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	type order struct{ Customer, Item string }
	orders := zsync.NewQueue[order](s, "/orders", zsync.WithKey(func(o order) string { return o.Customer }))
	if err := orders.Send(ctx, order{"ada", "tea"}, order{"ada", "cups"}); err != nil {
		log.Fatal(err)
	}
	orders.Work(ctx, 4, func(ctx context.Context, o order) error { // four at a time, of four customers
		fmt.Println(o.Customer, o.Item)
		if o.Item == "cups" {
			cancel()
		}
		return nil
	})
	// Output:
	// ada tea
	// ada cups
}

// A transaction writes an order and sends a mail, both or neither.
func ExampleQueue_SendOp() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	mails := zsync.NewQueue[string](s, "/mails")
	_, err = s.Txn(ctx, &zk.CreateRequest{Path: "/order", Data: []byte("paid")}, mails.SendOp("receipt"))
	if err != nil {
		log.Fatal(err)
	}
	for mail, err := range mails.List(ctx, zsync.QueueReady) {
		fmt.Println(mail.Value, mail.State, err)
	}
	// Output: receipt ready <nil>
}

// A transaction acknowledges an element and sends its result, both or neither.
func ExampleDelivery_Txn() {
	srv := zktest.NewServer()
	defer srv.Close()
	ctx := context.Background()
	s, err := zsync.Connect(ctx, srv.Addr())
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	raw, cooked := zsync.NewQueue[string](s, "/raw"), zsync.NewQueue[string](s, "/cooked")
	if err := raw.Send(ctx, "egg"); err != nil {
		log.Fatal(err)
	}
	d, err := raw.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := d.Txn(ctx, cooked.SendOp("boiled "+d.Value)); err != nil {
		log.Fatal(err)
	}
	meal, _, err := cooked.Peek(ctx)
	fmt.Println(meal, err)
	// Output: boiled egg <nil>
}
