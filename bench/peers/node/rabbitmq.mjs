// RabbitMQ: persistent messages into a durable quorum queue, publisher confirms, manual acknowledgements.
import { noop, params, PAYLOAD, QUEUE, require, runDriver } from "./load.mjs";

const amqp = require("amqplib");
const body = () => Buffer.from(JSON.stringify(PAYLOAD));
const durable = { durable: true, arguments: { "x-queue-type": "quorum" } };
const persistent = { persistent: true, contentType: "application/json" };
let connection, channel, consumer;

await runDriver({
  async open() {
    connection = await amqp.connect(`amqp://127.0.0.1:${params.address}`, { noDelay: true });
    channel = await connection.createConfirmChannel();
    await channel.assertQueue(QUEUE, durable);
  },
  empty: () => channel.purgeQueue(QUEUE),
  send: () => new Promise((resolve, reject) => {
    channel.sendToQueue(QUEUE, body(), persistent, (error) => (error ? reject(error) : resolve()));
  }),
  async sendMany(count) {
    for (let sent = 0; sent < count; sent += 1) channel.sendToQueue(QUEUE, body(), persistent);
    await channel.waitForConfirms();
  },
  async work(handled) {
    consumer = await connection.createChannel();
    await consumer.prefetch(params.prefetch);
    await consumer.consume(QUEUE, async (message) => {
      await noop(JSON.parse(message.content));
      consumer.ack(message);
      handled();
    });
  },
  // is processed after the last acknowledgement; unacknowledged messages would become ready again
  settled: () => consumer.close(),
  left: async () => (await channel.checkQueue(QUEUE)).messageCount,
});
