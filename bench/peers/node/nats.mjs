// NATS JetStream: a work queue stream on disk, each publish acknowledged by the server, explicit acknowledgements.
import { noop, params, PAYLOAD, QUEUE, require, runDriver } from "./load.mjs";

const { connect } = require("@nats-io/transport-node");
const { AckPolicy, jetstream, jetstreamManager, RetentionPolicy, StorageType } = require("@nats-io/jetstream");
const stream = { name: QUEUE, subjects: [QUEUE], retention: RetentionPolicy.Workqueue, storage: StorageType.File, allow_atomic: true };
const durable = { durable_name: QUEUE, ack_policy: AckPolicy.Explicit };
const body = () => JSON.stringify(PAYLOAD);
let js, manager;

await runDriver({
  async open() {
    const connection = await connect({ port: params.address });
    [js, manager] = [jetstream(connection), await jetstreamManager(connection)];
  },
  async prepare() {
    await manager.streams.add(stream);
    await manager.consumers.add(QUEUE, { ...durable, max_ack_pending: -1 });
  },
  empty: () => manager.streams.purge(QUEUE),
  send: () => js.publish(QUEUE, body()),
  async sendMany(count) {
    const batch = await js.startBatch(QUEUE, body());
    for (let sent = 1; sent < count - 1; sent += 1) batch.add(QUEUE, body());
    await batch.commit(QUEUE, body());
  },
  async work(handled) {
    const consumer = await js.consumers.get(QUEUE, QUEUE);
    const messages = await consumer.consume(params.prefetch ? { max_messages: params.prefetch } : {});
    for await (const message of messages) {
      await noop(message.json());
      message.ack();
      handled();
    }
  },
  left: async () => (await manager.streams.info(QUEUE)).state.messages, // of a work queue: not yet acknowledged
});
